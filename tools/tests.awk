# Makes `go test -v` short and honest: one line for a package that passed, what
# the failed tests said for one that did not, and every skipped test with its
# reason, so that what was not tested is never silent.
function forget() { n = 0; held = 0; name = ""; split("", said); split("", failing) }

# Each line belongs to the test that go test last named; "" is the package.
function keep(owner) { line[++n] = $0; of[n] = owner }

/^(ok  |\?   )\t/ {
	if ($1 == "ok") { print; passed++ }
	for (i = 1; i <= held; i++) print skip[i]
	forget()
	fflush()
	next
}
/^FAIL\t/ {
	for (i = 1; i <= n; i++) if (of[i] == "" || of[i] in failing) print line[i]
	print
	for (i = 1; i <= held; i++) print skip[i]
	failed++
	forget()
	fflush()
	next
}
/^=== (RUN|NAME|CONT|PAUSE) / { name = $3; next }
/^(panic:|fatal error:|signal:|\*\*\* Test killed|WARNING: DATA RACE)/ { name = "" }
/^ *--- (PASS|FAIL|SKIP): / {
	if ($2 == "FAIL:") { failing[$3] = 1; keep($3) }
	if ($2 == "SKIP:") { skip[++held] = "    skipped " $3 " " said[$3]; skips++ }
	next
}
/^ +[A-Za-z0-9_]+\.go:[0-9]+: / { said[name] = $0 }
{ keep(name) }
END {
	for (i = 1; i <= n; i++) print line[i]
	printf "%d packages passed, %d failed, %d tests skipped\n", passed, failed, skips
}
