package peeruid

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// stranger is the uid of the tests' other user.
const stranger = 54321

// roles maps names to what this binary does, instead of running tests, in processes that
// the tests start. The argument is that of the process.
var roles = map[string]func(args ...string) error{
	"dial":      dialAndStay,
	"sendClose": sendAndClose,
	"halfClose": sendAndShutWrite,
	"serve":     serve,
}

func TestMain(m *testing.M) {
	if role, ok := roles[os.Getenv("PEERUID_ROLE")]; ok {
		if err := role(os.Args[1:]...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// dialAndStay connects, prints "connected", and stays until stdin ends.
func dialAndStay(args ...string) error {
	c, err := net.Dial(args[0], args[1])
	if err != nil {
		return err
	}
	defer c.Close()
	fmt.Println("connected")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// sendAndClose connects from the port args[2] (0 means any), sends a byte, ends the
// connection in the way that args[3] names, and prints "closed". After "full", the near
// end still takes the connection for established, because the end of the stream waits
// behind data for which there is no buffer space.
func sendAndClose(args ...string) error {
	from, err := net.ResolveTCPAddr(args[0], "127.0.0.1:"+args[2])
	if err != nil {
		return err
	}
	c, err := (&net.Dialer{LocalAddr: from}).Dial(args[0], args[1])
	if err != nil {
		return err
	}
	switch args[3] {
	case "reset":
		c.(*net.TCPConn).SetLinger(0)
	case "full":
		c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
		for err == nil {
			_, err = c.Write(make([]byte, 1<<20))
		}
	}
	if _, err := c.Write([]byte{1}); err != nil && args[3] != "full" {
		return err
	}
	if err := c.Close(); err != nil {
		return err
	}
	fmt.Println("closed")
	return nil
}

// sendAndShutWrite is like dialAndStay, but closes its writing half.
func sendAndShutWrite(args ...string) error {
	c, err := net.Dial(args[0], args[1])
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	fmt.Println("half closed")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// serve listens, prints its address, and prints SameUser's result for each connection.
func serve(...string) error {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(ln.Addr())
	for {
		c, err := ln.Accept()
		if err != nil {
			return err
		}
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
	case errors.Is(err, ErrUnknown):
		return "unknown"
	}
	return "error: " + err.Error()
}

// A process is a process that a test started.
type process struct {
	t   *testing.T
	in  io.Closer
	out *bufio.Reader
}

// start runs this binary in a role, as user uid. If namespace is set, the process is in a
// user namespace of its own that maps only uid 0. The process ends with the test.
func start(t *testing.T, uid uint32, namespace bool, role string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(copyOfSelf(t), args...)
	cmd.Env = append(os.Environ(), "PEERUID_ROLE="+role)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if uid != uint32(os.Getuid()) {
		if os.Getuid() != 0 {
			t.Skip("only root can start a process of another user")
		}
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uid, Gid: uid}
	}
	if namespace {
		cmd.SysProcAttr.Cloneflags = syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		if namespace && errors.Is(err, syscall.EPERM) {
			t.Skip("this host permits no user namespaces: ", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	return &process{t, in, bufio.NewReader(out)}
}

// line returns the next line that the process prints.
func (p *process) line() string {
	p.t.Helper()
	s, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatal("the process said no more: ", err)
	}
	return strings.TrimSpace(s)
}

// copyOfSelf returns a copy of this binary that every user may execute.
func copyOfSelf(t *testing.T) string {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "peeruid")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "peer")
	if err := os.WriteFile(path, self, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
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
	dir, err := os.MkdirTemp("", "peeruid")
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

			p := start(t, uint32(os.Getuid()), false, "dial", l.network, at(ln, l.dial))
			p.line()
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
			p := start(t, stranger, false, "dial", l.network, at(ln, l.dial))
			p.line()
			c := accept(t, ln)
			err := SameUser(c)
			var other *OtherUserError
			if !errors.As(err, &other) || other.Peer != stranger || other.Own != uint32(os.Geteuid()) || other.Unmapped {
				t.Fatalf("SameUser is %v, want an OtherUserError of %d and %d", err, stranger, os.Geteuid())
			}
			for _, uid := range []int{stranger, os.Geteuid()} {
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
			p := start(t, stranger, false, "sendClose", "tcp", ln.Addr().String(), "0", end)
			if got := p.line(); got != "closed" {
				t.Fatal(got)
			}
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
		p := start(t, stranger, false, "halfClose", "tcp", ln.Addr().String())
		p.line()
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
	p := start(t, stranger, false, "sendClose", "tcp", ln.Addr().String(), fmt.Sprint(port), "reset")
	if got := p.line(); got != "closed" {
		t.Fatal(got)
	}
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
	server := start(t, uint32(os.Getuid()), true, "serve")
	addr := server.line()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := server.line(); got != "same" {
		t.Errorf("a process of the mapped user is %q", got)
	}
	p := start(t, stranger, false, "dial", "tcp", addr)
	p.line()
	if got := server.line(); got != "unmapped" {
		t.Errorf("a process of an unmapped user is %q", got)
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

func BenchmarkSameUser(b *testing.B) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer ln.Close()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer client.Close()
	c, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		if err := SameUser(c); err != nil {
			b.Fatal(err)
		}
	}
}
