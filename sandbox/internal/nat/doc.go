// Package nat gives sandboxes a network interface whose traffic the host translates and
// filters, for servers with root.
//
// # Words
//
// A link is a pair of interfaces: eth0 in the sandbox's network namespace, and one on the
// host whose name begins with the prefix of its server. A slot is a block of four
// addresses out of the server's range, one of them the host's and one the sandbox's; the
// name of the host's interface has its number.
//
// # Invariants
//
//   - What comes out of a sandbox goes to public IPv4 addresses, with an address of the
//     host's in place of its own. It never reaches the host itself, other sandboxes, or
//     private, shared, link-local, multicast and reserved addresses, nor anything over
//     IPv6. A packet with a source that is not the sandbox's is dropped.
//   - Nothing comes in but what answers. The host does not call in either.
//   - The rules are in one table a server, which two servers on a host do not share.
//     They are there before the first link is. When somebody removes them they are put
//     back within a second, for as long as the server runs.
//   - A link ends with the sandbox's network namespace, which only its processes hold:
//     nothing has to be unmounted or removed when they die.
//   - No setting of the host is changed. Whether it forwards packets is the operator's
//     decision: where it does not, there is no such network.
//
// Other tables of the host apply as well: one that drops what is forwarded, as container
// engines install, has to let these interfaces through.
//
// # Concurrency
//
// All methods may be called at the same time, and by servers that share a host and a
// range: the kernel refuses a second interface of the same name, and addresses that two
// servers chose at once are given back.
//
// # Failure
//
// An Attach that fails leaves no link. Open and Detach can be repeated.
package nat
