package sandboxtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sojourn-dev/sojourn/sandbox"
)

// Why a wall of files and TCP does not stop it.
var (
	noNetworkNamespace = map[sandbox.Isolation]string{sandbox.IsolationProcess: "it has no network namespace, and Landlock knows TCP only"}
	olderLandlock      = map[sandbox.Isolation]string{sandbox.IsolationProcess: "only newer kernels' Landlock stops it"}
)

// escapeNetwork are ways to services, and ways to tell somebody something.
var escapeNetwork = []attempt{
	{name: "HostLoopback", try: func(s stage) error {
		return dials("tcp", net.JoinHostPort("127.0.0.1", port(s.TCP)), net.JoinHostPort("::1", port(s.TCP)))
	}},
	{name: "HostAddresses", try: func(s stage) error {
		var addrs []string
		for _, a := range s.Addresses {
			addrs = append(addrs, net.JoinHostPort(a, port(s.TCP)))
		}
		return dials("tcp", addrs...)
	}},
	{name: "HostDatagrams", try: hostDatagrams, open: noNetworkNamespace},
	{name: "HostUnixSocket", try: func(s stage) error { return dials("unix", s.Socket) }, open: olderLandlock},
	{name: "HostAbstractSocket", try: func(s stage) error { return dials("unix", s.Abstract) }},
	{name: "HostServices", try: func(stage) error {
		return dials("unix", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket", "/run/systemd/private")
	}, bare: bareDepends, open: olderLandlock},
	{name: "KeeperOfOtherSandbox", try: func(s stage) error { return dials("unix", s.OtherSock) }, open: olderLandlock},
	{name: "Metadata", try: func(stage) error {
		return dials("tcp", "169.254.169.254:80", "[fd00:ec2::254]:80", "100.100.100.200:80")
	}, bare: bareNever},
	{name: "Routes", try: func(stage) error {
		// A datagram socket connects when there is a route, and sends nothing.
		return dials("udp", "169.254.169.254:53", "10.0.0.1:53", "192.168.0.1:53", "1.1.1.1:53", "[2606:4700:4700::1111]:53")
	}, bare: bareDepends, open: noNetworkNamespace},
	{name: "Resolvers", try: resolvers, bare: bareNever, open: noNetworkNamespace},
	{name: "NameLookup", try: func(stage) error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, err := net.DefaultResolver.LookupHost(ctx, "c2VjcmV0.tunnel.example.com")
		if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound && e.Server != "" && !ours(e.Server) {
			return nil // somebody was asked
		}
		return err
	}, bare: bareNever, open: noNetworkNamespace},
	{name: "RawSocket", try: func(stage) error {
		return anyOf(
			func() error { return opensSocket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP) },
			func() error { return opensSocket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6) },
		)
	}, bare: bareRoot},
	{name: "PacketSocket", try: func(stage) error {
		return opensSocket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	}, bare: bareRoot},
	{name: "RareSockets", try: func(stage) error {
		return anyOf(
			func() error { return opensSocket(unix.AF_VSOCK, unix.SOCK_STREAM, 0) },
			func() error { return opensSocket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0) },
			func() error { return opensSocket(unix.AF_BLUETOOTH, unix.SOCK_RAW, 0) },
			func() error { return opensSocket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER) },
			func() error { return opensSocket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT) },
		)
	}, bare: bareDepends, open: map[sandbox.Isolation]string{
		sandbox.IsolationGVisor:    ownKernel,
		sandbox.IsolationProcess:   "it has no filter of system calls",
		sandbox.IsolationContainer: "the engine's filter decides it",
	}},
	{name: "InterfaceByIoctl", try: func(stage) error {
		s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(s)
		req, err := unix.NewIfreq("lo")
		if err != nil {
			return err
		}
		if err := unix.IoctlIfreq(s, unix.SIOCGIFFLAGS, req); err != nil {
			return err
		}
		return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, req) // as they are
	}, bare: bareRoot},
	{name: "InterfaceByNetlink", try: netlinkWrite, bare: bareRoot},
	{name: "LowPort", try: func(stage) error {
		ln, err := net.Listen("tcp4", "127.0.0.1:111")
		if err != nil {
			return err
		}
		return ln.Close()
	}, bare: bareDepends, open: map[sandbox.Isolation]string{
		sandbox.IsolationGVisor:    "the loopback is its own",
		sandbox.IsolationNamespace: "the loopback is its own",
		sandbox.IsolationContainer: "the loopback is its own",
	}},
}

func port(n int) string { return strconv.Itoa(n) }

// dials gets through when one of the addresses answers.
func dials(network string, addresses ...string) error {
	var stopped []error
	for _, a := range addresses {
		c, err := net.DialTimeout(network, a, 500*time.Millisecond)
		if err == nil {
			return c.Close()
		}
		stopped = append(stopped, err)
	}
	return errors.Join(stopped...)
}

func opensSocket(family, kind, protocol int) error {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return fmt.Errorf("socket of family %d, protocol %d: %w", family, protocol, err)
	}
	return unix.Close(fd)
}

// hostDatagrams sends something to the host and waits for the answer.
func hostDatagrams(s stage) error {
	var stopped []error
	for _, a := range append([]string{"127.0.0.1", "::1"}, s.Addresses...) {
		c, err := net.Dial("udp", net.JoinHostPort(a, port(s.UDP)))
		if err != nil {
			stopped = append(stopped, err)
			continue
		}
		_ = c.SetDeadline(time.Now().Add(300 * time.Millisecond))
		said, heard := []byte(s.Mark), make([]byte, 64)
		_, err = c.Write(said)
		n := 0
		if err == nil {
			n, err = c.Read(heard)
		}
		c.Close()
		if err == nil && bytes.Equal(heard[:n], said) {
			return nil
		}
		stopped = append(stopped, err)
	}
	return errors.Join(stopped...)
}

// ours reports whether a name server is the keeper, which answers on the loopback.
func ours(server string) bool {
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		host = server
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// resolvers looks for name servers that there is a route to.
func resolvers(stage) error {
	b, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return err
	}
	stopped := []error{errors.New("no name server")}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "nameserver" && !ours(f[1]) {
			err := dials("tcp", net.JoinHostPort(f[1], "53"))
			if err == nil {
				return nil
			}
			stopped = append(stopped, err)
		}
	}
	return errors.Join(stopped...)
}

// netlinkWrite asks the kernel to change nothing about interface 1, which takes the right
// to change something.
func netlinkWrite(stage) error {
	s, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	// struct nlmsghdr and struct ifinfomsg, little-endian.
	msg := make([]byte, 32)
	msg[0], msg[4], msg[6], msg[8] = 32, unix.RTM_SETLINK, unix.NLM_F_REQUEST|unix.NLM_F_ACK, 1
	msg[20] = 1
	if err := unix.Sendto(s, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(s, answer, 0)
	if err != nil {
		return err
	}
	if n < 20 {
		return fmt.Errorf("an answer of %d bytes", n)
	}
	code := int32(uint32(answer[16]) | uint32(answer[17])<<8 | uint32(answer[18])<<16 | uint32(answer[19])<<24)
	if code == 0 {
		return nil
	}
	return unix.Errno(-code)
}
