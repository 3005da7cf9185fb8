package handshake

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) {
	testkit.Main(m, map[string]func(){
		"dial": dialAndStay, "sendClose": sendAndClose, "halfClose": sendAndShutWrite, "serve": serve,
		"own": func() { fmt.Println(CheckOwnUser()) },
	})
}

// must ends a process if err is not nil.
func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// dial connects as the arguments of the process say: with a network and an address.
func dial(d net.Dialer) net.Conn {
	c, err := d.Dial(os.Args[1], os.Args[2])
	must(err)
	return c
}

// dialAndStay connects, prints "connected", and stays until it is killed.
func dialAndStay() {
	c := dial(net.Dialer{})
	fmt.Println("connected")
	runtime.KeepAlive(c)
	select {}
}

// sendAndClose connects from the port that the third argument names (0 means any), sends a byte, ends the
// connection in the way that the fourth names, and prints "closed". After "full", the near
// end still takes the connection for established, because the end of the stream waits
// behind data for which there is no buffer space.
func sendAndClose() {
	from, err := net.ResolveTCPAddr(os.Args[1], "127.0.0.1:"+os.Args[3])
	must(err)
	c := dial(net.Dialer{LocalAddr: from})
	_, err = c.Write([]byte{1})
	must(err)
	switch os.Args[4] {
	case "reset":
		c.(*net.TCPConn).SetLinger(0)
	case "full":
		c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		for err == nil {
			_, err = c.Write(make([]byte, 1<<20))
		}
	}
	must(c.Close())
	fmt.Println("closed")
}

// sendAndShutWrite is like dialAndStay, but closes its writing half.
func sendAndShutWrite() {
	c := dial(net.Dialer{})
	_, err := c.Write([]byte{1})
	must(err)
	must(c.(*net.TCPConn).CloseWrite())
	fmt.Println("half closed")
	runtime.KeepAlive(c)
	select {}
}

// serve listens, prints its address, and prints SameUser's result for each connection.
func serve() {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	fmt.Println("listens on", ln.Addr())
	for {
		c, err := ln.Accept()
		must(err)
		fmt.Println(kindOf(SameUser(c)))
		c.Close()
	}
}

// kindOf returns the kind of SameUser's result as a word.
func kindOf(err error) string {
	var other *OtherUserError
	switch {
	case err == nil:
		return "same"
	case errors.As(err, &other) && other.Unmapped:
		return "unmapped"
	case errors.As(err, &other):
		return "other"
	case errors.Is(err, ErrUserUnknown):
		return "unknown"
	}
	return "error: " + err.Error()
}

// startStranger starts a process of another user, and waits until it has said a word.
func startStranger(t *testing.T, word, program string, args ...string) {
	t.Helper()
	testkit.Start(t, testkit.AsUser(t, testkit.Self(t, program, args...))).Await("^"+word+"$", 1)
}

func listen(t *testing.T, network, addr string) net.Listener {
	t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		if network == "tcp6" || strings.HasPrefix(addr, "[") {
			t.Skip("no IPv6 here: ", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func accept(t *testing.T, ln net.Listener) net.Conn {
	t.Helper()
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// want fails the test unless SameUser's result is of the kind.
func want(t *testing.T, c net.Conn, kind string) {
	t.Helper()
	if err := SameUser(c); kindOf(err) != kind {
		t.Errorf("SameUser is %q (%v), want %q", kindOf(err), err, kind)
	}
}

var listeners = []struct{ name, network, listen, dial string }{
	{"IPv4", "tcp", "127.0.0.1:0", "127.0.0.1"},
	{"IPv6", "tcp", "[::1]:0", "::1"},
	{"IPv4 to every interface", "tcp", "[::]:0", "127.0.0.1"},
	{"IPv6 to every interface", "tcp", "[::]:0", "::1"},
	{"unix", "unix", "", ""},
}

// at returns the address at which a client reaches ln.
func at(ln net.Listener, host string) string {
	if a, ok := ln.Addr().(*net.TCPAddr); ok {
		return net.JoinHostPort(host, fmt.Sprint(a.Port))
	}
	return ln.Addr().String()
}

func openUnix(t *testing.T) string {
	dir, err := os.MkdirTemp("", "handshake")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	return filepath.Join(dir, "socket")
}

func TestSameUserAcceptsOwnProcess(t *testing.T) {
	for _, l := range listeners {
		t.Run(l.name, func(t *testing.T) {
			if l.network == "unix" {
				l.listen = openUnix(t)
			}
			ln := listen(t, l.network, l.listen)
			client, err := net.Dial(l.network, at(ln, l.dial))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			want(t, accept(t, ln), "same")
		})
	}
}

func TestSameUserAcceptsMappedAddress(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::]:0"} {
		ln := listen(t, "tcp", addr)
		// An IPv6 socket that is connected to an IPv4 address, as C++ clients make.
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Skip("no IPv6 here: ", err)
		}
		defer unix.Close(fd)
		to := &unix.SockaddrInet6{Port: ln.Addr().(*net.TCPAddr).Port}
		copy(to.Addr[:], net.IPv4(127, 0, 0, 1).To16())
		if err := unix.Connect(fd, to); err != nil {
			t.Fatal(err)
		}
		want(t, accept(t, ln), "same")
	}
}

func TestSameUserRefusesOtherUser(t *testing.T) {
	for _, l := range listeners {
		t.Run(l.name, func(t *testing.T) {
			if l.network == "unix" {
				l.listen = openUnix(t)
			}
			ln := listen(t, l.network, l.listen)
			if l.network == "unix" {
				os.Chmod(l.listen, 0o777)
			}
			startStranger(t, "connected", "dial", l.network, at(ln, l.dial))
			c := accept(t, ln)
			err := SameUser(c)
			var other *OtherUserError
			if !errors.As(err, &other) || other.Peer != testkit.OtherUID || other.Own != uint32(os.Geteuid()) || other.Unmapped {
				t.Fatalf("SameUser is %v, want an OtherUserError of %d and %d", err, testkit.OtherUID, os.Geteuid())
			}
			for _, uid := range []int{testkit.OtherUID, os.Geteuid()} {
				if !strings.Contains(err.Error(), fmt.Sprint("uid ", uid)) {
					t.Errorf("%q does not hold uid %d", err, uid)
				}
			}
		})
	}
}

// Some kernels report uid 0 for a socket that no process has open. If root runs the
// tests, this is the uid of this process.
func TestSameUserRefusesClosedPeer(t *testing.T) {
	for _, end := range []string{"close", "reset", "full"} {
		t.Run(end, func(t *testing.T) {
			ln := listen(t, "tcp", "127.0.0.1:0")
			startStranger(t, "closed", "sendClose", "tcp", ln.Addr().String(), "0", end)
			c := accept(t, ln)
			want(t, c, "unknown")
			var b [1]byte
			if n, err := c.Read(b[:]); n != 1 && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("Read after SameUser is %d, %v: SameUser must take nothing", n, err)
			}
			want(t, c, "unknown")
		})
	}
	t.Run("half close", func(t *testing.T) {
		ln := listen(t, "tcp", "127.0.0.1:0")
		startStranger(t, "half closed", "halfClose", "tcp", ln.Addr().String())
		want(t, accept(t, ln), "unknown")
	})
}

// When SameUser looks, the stranger's port belongs to this user. The far end that the
// kernel finds is not the one of the connection.
func TestSameUserRefusesReusedPort(t *testing.T) {
	ln := listen(t, "tcp", "127.0.0.1:0")
	free := listen(t, "tcp", "127.0.0.1:0")
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	startStranger(t, "closed", "sendClose", "tcp", ln.Addr().String(), fmt.Sprint(port), "reset")
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}, Timeout: 10 * time.Second}
	mine, err := d.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	first, second := accept(t, ln), accept(t, ln)
	if first.RemoteAddr().String() != second.RemoteAddr().String() {
		t.Fatalf("the connections come from %v and %v", first.RemoteAddr(), second.RemoteAddr())
	}
	want(t, first, "unknown")
	want(t, second, "same")
}

func TestSameUserInUserNamespace(t *testing.T) {
	cmd := testkit.Self(t, "serve")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	server := testkit.StartBy(t, cmd, func() error {
		err := cmd.Start()
		if err != nil {
			t.Skip("this host permits no user namespaces: ", err)
		}
		return nil
	})
	addr := strings.TrimPrefix(server.Await("^listens on ", 1).Text, "listens on ")
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	server.Await("^same$", 1)
	startStranger(t, "connected", "dial", "tcp", addr)
	server.Await("^unmapped$", 1)
}

// Where all users are mapped, the overflow uid is a user like any other, often called nobody. Elsewhere that
// user cannot be told from others.
func TestOverflowUID(t *testing.T) {
	const nobody = 65534
	asNobody := func(role string) *exec.Cmd {
		cmd := testkit.AsUser(t, testkit.Self(t, role))
		cmd.SysProcAttr.Credential.Uid = nobody
		return cmd
	}
	if got := testkit.Run(t, asNobody("own")).Stdout; got != "<nil>\n" {
		t.Errorf("with all users mapped: %s", got)
	}
	server := testkit.Start(t, asNobody("serve"))
	dialler := asNobody("dial")
	dialler.Args = append(dialler.Args, "tcp", strings.TrimPrefix(server.Await("^listens on ", 1).Text, "listens on "))
	testkit.Start(t, dialler)
	server.Await("^same$", 1)

	inside := testkit.Self(t, "own")
	inside.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: nobody, HostID: os.Getuid(), Size: 1}},
	}
	if got := testkit.Run(t, inside).Stdout; got != "this process runs as uid 65534, which in this user namespace also stands for every user outside of it\n" {
		t.Errorf("with one user mapped: %s", got)
	}
}

func TestSameUserOfOtherConnections(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	want(t, a, "unknown")
}

func TestSameUserKeepsNoDescriptor(t *testing.T) {
	ln := listen(t, "tcp", "127.0.0.1:0")
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c := accept(t, ln)
	count := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	before := count()
	for range 100 {
		want(t, c, "same")
	}
	client.Close()
	for range 100 {
		want(t, c, "unknown")
	}
	// The client's own descriptor is gone; others of the process may come and go.
	if after := count(); after > before+10 {
		t.Errorf("%d descriptors before 200 calls, %d after", before, after)
	}
}
