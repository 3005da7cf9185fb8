package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/handshake"
	"github.com/goddp/goddp/internal/testkit"
)

// quickly returns a context for calls that must fail before it ends.
func quickly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func members(secrets ...string) (m []Member) {
	for _, s := range secrets {
		var secret []byte
		if s != "" {
			secret = []byte(s)
		}
		m = append(m, Member{Job: handshake.Job{ID: "job", World: 2}, Rank: len(m), Secret: secret})
	}
	return m
}

// The server refuses a client without its secret at once, and the client learns the
// reason.
func TestSecrets(t *testing.T) {
	for _, test := range []struct{ server, client, want string }{
		{"sixteen letters!", "sixteen letters!", ""},
		{"", "", ""},
		{"sixteen letters!", "", "has a secret, and this process has none"},
		{"", "sixteen letters!", "has no secret, and this process has one"},
		{"sixteen letters!", "another secret", "has another secret"},
	} {
		m := members(test.server, test.client)
		lines, logger := newLog()
		s := listen(t, &ServerOptions{Member: m[0], Logger: logger})
		c, err := Dial(quickly(t), s.Addr(), &ClientOptions{Member: &m[1]})
		if err == nil {
			err = errors.Join(c.Set(quickly(t), "k", []byte("v")), c.Close())
		}
		if test.want == "" {
			if err != nil {
				t.Errorf("%+v: %v", test, err)
			}
			continue
		}
		var refused *HandshakeError
		var secret *handshake.SecretError
		if !errors.As(err, &refused) || !errors.As(err, &secret) || errors.Is(err, ErrServerLost) ||
			!strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "GODDP_TOKEN_FILE") {
			t.Errorf("%+v: %v", test, err)
		}
		line := <-lines
		for _, text := range []string{line, fmt.Sprint(err)} {
			if strings.Contains(text, "sixteen letters!") {
				t.Errorf("a secret is told: %q", text)
			}
		}
		if n, err := s.Local().NumKeys(t.Context()); n != 0 || err != nil {
			t.Errorf("%+v: %d keys, %v", test, n, err)
		}
	}
}

// The server refuses a process of another job at once. The error holds both values, and
// the server goes on.
func TestOtherJobs(t *testing.T) {
	for _, test := range []struct {
		job  handshake.Job
		want []string
	}{
		{handshake.Job{ID: "other", World: 2}, []string{`job id "other" here`, `"job" there`, "belongs to another job", "GODDP_JOB_ID"}},
	} {
		m := members("", "", "")
		lines, logger := newLog()
		s := listen(t, &ServerOptions{Member: m[0], Logger: logger})
		ours := dial(t, s.Addr(), &ClientOptions{Member: &m[1]})
		m[2].Job = test.job
		start := time.Now()
		_, err := Dial(withPatience(t), s.Addr(), &ClientOptions{Member: &m[2]})
		var different *handshake.DifferentJobError
		if !errors.As(err, &different) || time.Since(start) > patience/2 {
			t.Errorf("%+v: %v", test.job, err)
			continue
		}
		for _, want := range append(test.want, "MASTER_PORT", fmt.Sprintf("process %d on ", os.Getpid())) {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
		lines.expect(t, "connection rejected", different.What, "MASTER_PORT")
		if err := ours.Set(quickly(t), "k", nil); err != nil {
			t.Error(err)
		}
	}
}

// The second process with a rank learns of the first one while that one is connected.
func TestRivals(t *testing.T) {
	m := members("", "")
	s := listen(t, &ServerOptions{Member: m[0]})
	first := dial(t, s.Addr(), &ClientOptions{Member: &m[1]})
	again := dial(t, s.Addr(), &ClientOptions{Member: &m[1]})
	if first.Rival() != nil || again.Rival() != nil {
		t.Errorf("one process is its own rival: %v, %v", first.Rival(), again.Rival())
	}
	// This handshake differs from that of member 1 only by the process's id.
	join := func() *handshake.Process {
		nc, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		cn := newClientConn(nc, &ClientOptions{Limits: Limits{}.withDefaults(), Timeout: patience})
		self := m[1].party(handshake.StoreClient)
		self.Process = handshake.Process{ID: "other", Host: "elsewhere", PID: 1}
		d := handshake.NewDialler(self, nil)
		rep, err := cn.exchange(quickly(t), request{op: opValidate, number: validateMagic}, handshakeRequest(d.Hello()))
		if err != nil {
			t.Fatal(err)
		}
		proof, err := d.Prove(rep.values[0])
		if err != nil {
			t.Fatal(err)
		}
		if rep, err = cn.exchange(quickly(t), handshakeRequest(proof)); err != nil {
			t.Fatal(err)
		}
		rival, err := d.Finish(rep.values[0])
		if err != nil {
			t.Fatal(err)
		}
		return rival
	}
	if rival := join(); rival == nil || rival.ID != handshake.ThisProcess().ID {
		t.Errorf("the rival is %v", rival)
	}
	first.Close()
	again.Close()
	deadline := time.Now().Add(patience)
	for join() != nil { // the server has to notice the end of the connections
		if time.Now().After(deadline) {
			t.Fatal("a process that is gone is a rival")
		}
	}
}

// Listen refuses an address that other hosts can reach if there is no secret.
func TestExposedAddresses(t *testing.T) {
	exposed := ":0"
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() {
			exposed = net.JoinHostPort(n.IP.String(), "0")
			break
		}
	}
	_, err = Listen(exposed, nil)
	if !errors.Is(err, ErrExposed) || !strings.Contains(err.Error(), "GODDP_TOKEN_FILE") || !strings.Contains(err.Error(), "GODDP_INSECURE=1") {
		t.Errorf("%s: %v", exposed, err)
	}
	secret := members("sixteen letters!", "sixteen letters!", "", "wrong letters !!")
	_, silent := newLog()
	s, err := Listen(exposed, &ServerOptions{Member: secret[0], Logger: silent})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := dial(t, s.Addr(), &ClientOptions{Member: &secret[1]}).Set(quickly(t), "k", nil); err != nil {
		t.Error(err)
	}
	for _, m := range secret[2:] {
		if _, err := Dial(quickly(t), s.Addr(), &ClientOptions{Member: &m}); !errors.As(err, new(*HandshakeError)) {
			t.Errorf("secret %q: %v", m.Secret, err)
		}
	}
	lines, logger := newLog()
	open, err := Listen(exposed, &ServerOptions{Member: Member{Insecure: true}, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	lines.expect(t, "GODDP_INSECURE=1")
	if err := dial(t, open.Addr(), nil).Set(quickly(t), "k", nil); err != nil {
		t.Error(err)
	}
}

// beStranger tries what another user's process must not be able to do, and prints the
// results.
func beStranger() {
	addr := os.Args[1]
	try := func(who string, limit time.Duration, opts *ClientOptions) {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		c, err := Dial(ctx, addr, opts)
		if err == nil {
			err = c.Set(ctx, "failure", []byte("it was rank 3"))
		}
		fmt.Printf("%s: %v\n", who, err)
	}
	try("plain", 300*time.Millisecond, nil) // it tries again until then
	for _, m := range members("", "wrong letters !!", "sixteen letters!") {
		try(fmt.Sprint("rank ", m.Rank), patience, &ClientOptions{Member: &m})
	}
	// Open more silent and incomplete connections than the server allows.
	for range 2 * maxStrangers {
		if nc, err := net.Dial("tcp", addr); err == nil {
			defer nc.Close()
			nc.Write([]byte{0, 0xce})
		}
	}
	for _, m := range members("", "", "sixteen letters!")[2:] {
		try(fmt.Sprint("rank ", m.Rank, " behind them"), admissionTimeout/2, &ClientOptions{Member: &m})
	}
	fmt.Println("idle: ")
	select {}
}

// A process of another user without the secret changes nothing, and keeps no other client
// out.
func TestStrangerOfAnotherUser(t *testing.T) {
	for _, secret := range []string{"", "sixteen letters!"} {
		ours := members(secret, secret)
		s := listen(t, &ServerOptions{Member: ours[0]})
		p := testkit.Start(t, testkit.AsUser(t, testkit.Self(t, "stranger", s.Addr())))
		p.Await("^idle: ", 1)
		said := map[string]string{}
		for line := range strings.Lines(p.Stdout()) {
			who, how, _ := strings.Cut(strings.TrimSpace(line), ": ")
			said[who] = how
		}
		if said["plain"] == "<nil>" || said["rank 0"] == "<nil>" || said["rank 1"] == "<nil>" || (said["rank 2"] == "<nil>") != (secret != "") ||
			(said["rank 2 behind them"] == "<nil>") != (secret != "") {
			t.Errorf("secret %q: %v", secret, said)
		}
		for _, rank := range []string{"rank 0", "rank 1"} {
			if !strings.Contains(said[rank], "GODDP_TOKEN_FILE") {
				t.Errorf("secret %q: %s is refused with %q", secret, rank, said[rank])
			}
		}
		want := int64(0)
		if secret != "" {
			want = 1 // who has the secret belongs to the job
		}
		if n, err := s.Local().NumKeys(t.Context()); n != want || err != nil {
			t.Errorf("secret %q: %d keys, %v", secret, n, err)
		}
		// Plain clients of this user, and members, can still connect.
		if err := dial(t, s.Addr(), nil).Set(quickly(t), "k", nil); err != nil {
			t.Error(err)
		}
		if err := dial(t, s.Addr(), &ClientOptions{Member: &ours[1]}).Set(quickly(t), "k", nil); err != nil {
			t.Error(err)
		}
	}
}
