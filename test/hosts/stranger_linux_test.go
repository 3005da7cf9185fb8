package hosts

import (
	"context"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/netns"
)

// dialFrom connects a host with an address.
func dialFrom(t *testing.T, h *netns.Host, addr string) net.Conn {
	t.Helper()
	var c net.Conn
	var err error
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Soon)
	defer cancel()
	h.Do(func() { c, err = (&net.Dialer{}).DialContext(ctx, "tcp", addr) })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestStrangersChangeNothing attacks the host of the rendezvous from another host of the network, while a
// job trains. The job goes on. The agent writes one line for each kind of stranger, and one a second when
// there are many.
func TestStrangersChangeNothing(t *testing.T) {
	n := netns.New(t, 3, 1)
	stranger, target := n.Hosts[2], endpoint(n.Hosts[0].Addr(0))
	j := newJob(t, n)
	j.c10d("2", target)
	j.start(0)
	awaitPorts(t, n.Hosts[0], 1)
	j.start(1)
	j.trains(2, 1, 0, 1)
	agent := j.agents[0]

	// The rendezvous is the only port that others can reach.
	if ports := openPorts(t, n.Hosts[0]); !slices.Equal(ports, []int{rdzvPort}) {
		t.Errorf("open ports of host0: %v", ports)
	}
	if ports := openPorts(t, n.Hosts[1]); len(ports) > 0 {
		t.Errorf("open ports of host1: %v", ports)
	}

	const refused = "rendezvous: connection rejected"
	// once expects that the agent writes one line about what do does.
	once := func(why string, do func()) {
		t.Helper()
		before := len(agent.Matches(refused))
		do()
		if l := agent.Await(refused, before+1); len(agent.Matches(why)) == 0 {
			t.Errorf("%q, want one about %q", l.Text, why)
		}
		time.Sleep(1100 * time.Millisecond) // later lines are not held back
		if lines := agent.Matches(refused)[before:]; len(lines) != 1 {
			t.Errorf("%d lines for one stranger: %v", len(lines), lines)
		}
	}
	// send writes bytes on a connection of its own, and waits until the agent ends it.
	send := func(data []byte) {
		t.Helper()
		c := dialFrom(t, stranger, target)
		defer c.Close()
		c.SetDeadline(time.Now().Add(testkit.Soon))
		c.Write(data) // fails if the agent has seen enough
		c.(*net.TCPConn).CloseWrite()
		if _, err := io.Copy(io.Discard, c); err != nil && isTimeout(err) {
			t.Error(err)
		}
	}

	once("certificate", func() {
		c := tls.Client(dialFrom(t, stranger, target), &tls.Config{InsecureSkipVerify: true})
		defer c.Close()
		c.SetDeadline(time.Now().Add(testkit.Soon))
		if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("a connection without a certificate: %v", err)
		}
	})
	once("it has a different token", func() {
		args := append(slices.Clone(j.flags), "--rdzv-endpoint", target, "--token-file", newToken(t))
		other := start(t, stranger, nil, program(t, "golaunch"), append(args, j.worker...)...)
		ends(t, other, 1)
		other.Expect("it has a different token", 1)
	})
	withoutToken := []string{"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", target}
	other := start(t, stranger, nil, program(t, "golaunch"), append(withoutToken, j.worker...)...)
	<-other.Ended()
	if other.Cmd.ProcessState.ExitCode() == 0 {
		t.Error("golaunch runs on several nodes without a token")
	}
	other.Expect("--token-file", 1)
	once("does not speak TLS", func() { send([]byte("GET / HTTP/1.0\r\n\r\n")) })
	once("TCPStore", func() { send([]byte{0, 0xce, 0xf7, 0x85, 0x3c, 1}) })

	random := rand.New(rand.NewPCG(1, 1))
	before, begin, garbage := len(agent.Matches(refused)), time.Now(), make([]byte, 300)
	for range 300 {
		for i := range garbage {
			garbage[i] = byte(random.Uint32())
		}
		send(garbage[:1+random.IntN(len(garbage))])
	}
	took := time.Since(begin)
	if lines := len(agent.Matches(refused)) - before; lines > int(took/time.Second)+2 {
		t.Errorf("%d lines in %v", lines, took)
	}
	j.finish()
	j.ends(2, 0, 1)
}

// TestSilentStrangersKeepNoNodeOut has a stranger hold more connections than the rendezvous serves at once.
// It opens each again that the agent closes. A node that returns is taken in.
func TestSilentStrangersKeepNoNodeOut(t *testing.T) {
	inMakeHosts(t)
	j := startElastic(t)
	target := endpoint(j.net.Hosts[0].Addr(0))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	j.agents[2].Cmd.Process.Kill()
	ends(t, j.agents[2], sigkilled)
	j.trains(2, 1, 0, 1)
	opened := make(chan struct{}, 600)
	for range cap(opened) {
		wg.Go(func() {
			for ctx.Err() == nil {
				var c net.Conn
				var err error
				j.net.Hosts[2].Do(func() { c, err = (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", target) })
				if err != nil {
					continue
				}
				select {
				case opened <- struct{}{}:
				default:
				}
				stop := context.AfterFunc(ctx, func() { c.Close() })
				c.Read(make([]byte, 1)) // until the agent closes it
				stop()
				c.Close()
			}
		})
	}
	for range cap(opened) {
		<-opened
	}
	begin := time.Now()
	j.start(2)
	j.trains(3, 2, 0, 1)
	t.Logf("taken in after %v", time.Since(begin).Round(time.Millisecond))
	cancel()
	j.finish()
	j.ends(3, 0, 1, 2)
}

func isTimeout(err error) bool {
	e, is := err.(net.Error)
	return is && e.Timeout()
}
