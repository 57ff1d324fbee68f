# Counts the packages that `go build -v` names, so that a long first build shows
# that it is alive. Anything that is not a package path is passed on: errors.
# Set total to the number of packages that there may be at most, and tty to 1
# when standard error is a terminal.
function show() {
	if (tty) printf "\r  compiled %d of at most %d packages", n, total > "/dev/stderr"
	else if (n % 100 == 0) printf "  compiled %d of at most %d packages\n", n, total > "/dev/stderr"
}
/^[A-Za-z0-9._~\/-]+$/ { n++; show(); next }
{ print > "/dev/stderr" }
END { if (tty && n) printf "\n" > "/dev/stderr" }
