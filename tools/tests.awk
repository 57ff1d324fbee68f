# Makes `go test -v` short and honest: one line for a package that passed, the
# whole output of one that failed, and every skipped test with its reason, so
# that what was not tested is never silent.
function forget() { n = 0; held = 0; said = "" }

/^(ok  |\?   )\t/ {
	if ($1 == "ok") { print; passed++ }
	for (i = 1; i <= held; i++) print skip[i]
	forget()
	fflush()
	next
}
/^FAIL\t/ {
	for (i = 1; i <= n; i++) print line[i]
	print
	failed++
	forget()
	fflush()
	next
}
{ line[++n] = $0 }
/^=== / { said = "" }
/^ +[A-Za-z0-9_]+\.go:[0-9]+: / { said = $0 }
/^ *--- SKIP: / { skip[++held] = "    skipped " $3 " " said; skips++ }
END {
	for (i = 1; i <= n; i++) print line[i]
	printf "%d packages passed, %d failed, %d tests skipped\n", passed, failed, skips
}
