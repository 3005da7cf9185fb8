package handshake

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/jobenv"
)

var testKey = []byte("a secret of a test")

func dialler(rank int, job Job, secret bool) Party {
	return Party{Role: PeerDialler, Job: job, HasSecret: secret, Rank: rank, Process: Process{ID: "d", Host: "dial", PID: 1}}
}

func listener(job Job, secret bool) Party {
	return Party{Role: PeerListener, Job: job, HasSecret: secret, Process: Process{ID: "l", Host: "listen", PID: 2}}
}

// run performs a handshake. It returns the messages, and the error of each end.
func run(d *Dialler, l *Listener) (messages [][]byte, dialled, listened error) {
	hello := d.Hello()
	answer, listened := l.Answer(hello)
	if listened != nil {
		rejection := l.Refuse(listened)
		_, dialled = d.Prove(rejection)
		return [][]byte{hello, rejection}, dialled, listened
	}
	proving, dialled := d.Prove(answer)
	if dialled != nil {
		return [][]byte{hello, answer}, dialled, nil
	}
	accept := l.Accept(nil)
	if listened = l.Verify(proving); listened != nil {
		accept = l.Refuse(listened)
	}
	_, dialled = d.Finish(accept)
	return [][]byte{hello, answer, proving, accept}, dialled, listened
}

func TestHandshake(t *testing.T) {
	for _, key := range [][]byte{testKey, nil} {
		self := dialler(3, Job{ID: "j", World: 8}, key != nil)
		self.ConnIndex = 2
		d, l := NewDialler(self, key), NewListener(listener(Job{ID: "j"}, key != nil), key)
		messages, dialled, listened := run(d, l)
		if dialled != nil || listened != nil {
			t.Errorf("%v, %v", dialled, listened)
		}
		if l.Peer() != self || d.Peer().Process.Host != "listen" {
			t.Errorf("met %+v and %+v", l.Peer(), d.Peer())
		}
		for _, m := range messages {
			if len(m) > MaxMessage || bytes.Contains(m, testKey) {
				t.Errorf("message %q", m)
			}
		}
	}
}

// If the two ends disagree, both get an error with both values.
func TestDifferentJobs(t *testing.T) {
	for _, test := range []struct {
		dialler, listener Job
		here, there       string // what the dialler's error must have; "": they are of one job
	}{
		{Job{}, Job{ID: "a", World: 3}, "", ""},
		{Job{ID: "a", World: 2}, Job{ID: "a", World: 2}, "", ""},
		{Job{ID: "a", Program: "p"}, Job{ID: "a", Program: "q"}, `program p here`, `q there`},
		{Job{ID: "a"}, Job{ID: "b"}, `job id "a" here`, `"b" there`},
		{Job{ID: "a"}, Job{Program: "p"}, `job id "a" here`, `none there`},
		{Job{Program: "p"}, Job{Program: "q"}, `program p here`, `q there`},
		{Job{Program: "p", Args: "-x 1"}, Job{Program: "p", Args: "-x 2"}, `arguments [-x 1] here`, `[-x 2] there`},
		{Job{ID: "a", World: 2}, Job{ID: "a", World: 4}, "WORLD_SIZE is 2 here", "and 4 in process 2 on listen: set the same on all ranks; or, if these are two jobs, give each its own MASTER_PORT"},
		{Job{ID: "a", World: 2}, Job{ID: "a"}, "", ""},
	} {
		_, dialled, listened := run(NewDialler(dialler(1, test.dialler, true), testKey), NewListener(listener(test.listener, true), testKey))
		if test.here == "" {
			if dialled != nil || listened != nil {
				t.Errorf("%+v and %+v: %v, %v", test.dialler, test.listener, dialled, listened)
			}
			continue
		}
		var here, there *DifferentJobError
		if !errors.As(dialled, &here) || !errors.As(listened, &there) {
			t.Errorf("%+v and %+v: %v, %v", test.dialler, test.listener, dialled, listened)
			continue
		}
		if here.Own != there.Other || here.Other != there.Own || here.By.Host != "listen" || there.By.Host != "dial" {
			t.Errorf("the ends disagree: %v; %v", here, there)
		}
		for _, want := range []string{test.here, test.there, "MASTER_PORT", "process 2 on listen"} {
			if !strings.Contains(here.Error(), want) {
				t.Errorf("%q does not say %q", here, want)
			}
		}
		// Another job id does not mend a wrong WORLD_SIZE.
		if advises := strings.Contains(here.Error(), "GODDP_JOB_ID"); advises == (here.What == "WORLD_SIZE") {
			t.Errorf("%q advises another job id: %v", here, advises)
		}
	}
}

func TestSecretsThatDiffer(t *testing.T) {
	for _, test := range []struct {
		dialler, listener []byte
		want              string // at the dialler
	}{
		{nil, testKey, "process 2 on listen has a secret, and this process has none"},
		{testKey, nil, "has no secret, and this process has one"},
		{testKey, []byte("another"), "has another secret than this process"},
	} {
		_, dialled, listened := run(
			NewDialler(dialler(1, Job{}, test.dialler != nil), test.dialler), NewListener(listener(Job{}, test.listener != nil), test.listener))
		var here, there *SecretError
		if !errors.As(dialled, &here) || !errors.As(listened, &there) || here.Own != there.Other || here.Other != there.Own {
			t.Errorf("%q, %q: %v; %v", test.dialler, test.listener, dialled, listened)
			continue
		}
		if text := here.Error(); !strings.Contains(text, test.want) || !strings.Contains(text, jobenv.TokenFileVar) || strings.Contains(text, string(testKey)) {
			t.Errorf("%q, %q: %v", test.dialler, test.listener, here)
		}
	}
}

// A recorded proof cannot be used again: not with the same listener, not with the dialler
// that made it, not under another rank, not with a changed hello.
func TestProofsAreOfOneConnection(t *testing.T) {
	old, dialled, listened := run(NewDialler(dialler(1, Job{}, true), testKey), NewListener(listener(Job{}, true), testKey))
	if dialled != nil || listened != nil {
		t.Fatal(dialled, listened)
	}
	hello, proving := old[0], old[2]

	// answered returns a dialler that has sent its hello, and what a listener with the key answers.
	answered := func(key []byte, change func(g *greeting)) (*Dialler, *Listener, []byte) {
		d, l := NewDialler(dialler(1, Job{}, true), testKey), NewListener(listener(Job{}, true), key)
		said := d.self
		change(&said)
		d.Hello()
		answer, err := l.Answer(said.encode())
		if err != nil {
			t.Fatal(err)
		}
		return d, l, answer
	}
	same := func(*greeting) {}
	for name, accepts := range map[string]func() bool{
		"replayed": func() bool {
			l := NewListener(listener(Job{}, true), testKey)
			if _, err := l.Answer(hello); err != nil {
				t.Fatal(err)
			}
			return l.Verify(proving) == nil
		},
		"replayed to a dialler": func() bool {
			d, _, _ := answered(testKey, same)
			if _, err := d.Prove(old[1]); err != nil {
				t.Fatal(err)
			}
			_, err := d.Finish(old[3])
			return err == nil
		},
		"reflected by a listener without the key": func() bool {
			d, _, answer := answered(nil, same)
			proving, err := d.Prove(answer)
			if err != nil {
				t.Fatal(err)
			}
			_, err = d.Finish(proving)
			return err == nil
		},
		"reflected hello": func() bool {
			d := NewDialler(dialler(1, Job{}, true), testKey)
			_, err := d.Prove(d.Hello())
			return err == nil
		},
		"under another rank": func() bool {
			d, l, answer := answered(testKey, func(g *greeting) { g.Rank = 2 })
			if l.Peer().Rank != 2 {
				t.Fatalf("rank %d", l.Peer().Rank)
			}
			proving, err := d.Prove(answer)
			if err != nil {
				t.Fatal(err)
			}
			return l.Verify(proving) == nil
		},
		"in another role": func() bool {
			self := dialler(1, Job{}, true)
			self.Role = StoreClient
			_, err := NewListener(listener(Job{}, true), testKey).Answer(NewDialler(self, testKey).Hello())
			return err == nil
		},
		"over a relay to another job with the same secret": func() bool {
			d := NewDialler(dialler(1, Job{ID: "a"}, true), testKey)
			_, err := NewListener(listener(Job{ID: "b"}, true), testKey).Answer(d.Hello())
			return err == nil
		},
	} {
		if accepts() {
			t.Errorf("a proof is accepted %s", name)
		}
	}
}

func TestJobIDs(t *testing.T) {
	for _, test := range []struct{ env, want string }{
		{"", ""},
		{"TORCHELASTIC_RUN_ID=none", ""},
		{"TORCHELASTIC_RUN_ID=100", "100"},
		{"GODDP_JOB_ID=a TORCHELASTIC_RUN_ID=100", "a"},
		{"TORCHELASTIC_RUN_ID=none SLURM_JOB_ID=7", "slurm 7"},
		{"SLURM_JOB_ID=7 SLURM_STEP_ID=0", "slurm 7.0"},
		{"PBS_JOBID=7.host", "batch 7.host"},
		{"LSB_JOBID=9", "batch 9"},
	} {
		env := map[string]string{}
		for _, kv := range strings.Fields(test.env) {
			name, value, _ := strings.Cut(kv, "=")
			env[name] = value
		}
		if got := idFromEnv(func(name string) string { return env[name] }); got != test.want {
			t.Errorf("%s: %q, want %q", test.env, got, test.want)
		}
	}
}

// All processes and copies of a program have the same value of program. Another program
// has another one.
func TestProgramNames(t *testing.T) {
	if program() == "" {
		t.Error("this program has no name")
	}
	for _, args := range [][]string{{"a", "b"}, {"a b"}, {"a", "b", ""}, {strings.Repeat("x", 5000)}, {strings.Repeat("x", 5001)}, {"\xff", "\x1b[m"}} {
		text := Arguments(args)
		if len(text) > maxText {
			t.Errorf("%d arguments are %d bytes", len(args), len(text))
		}
		if printable(text) != text {
			t.Errorf("%q is not what comes over", text)
		}
		for _, other := range [][]string{{"a", "c"}, {strings.Repeat("x", 5002)}} {
			if Arguments(other) == text {
				t.Errorf("%.20q and %.20q are the same", args, other)
			}
		}
	}
}

func TestReadSecret(t *testing.T) {
	dir := t.TempDir()
	for i, test := range []struct{ text, want, err string }{
		{"0123456789abcdef", "0123456789abcdef", ""},
		{"\n 0123456789abcdef\r\n\n", "0123456789abcdef", ""},
		{" 0123456789abcde ", "", "the secret has 15 bytes, want 16 to 4096"},
		{"", "", "the secret has 0 bytes"},
		{strings.Repeat("s", 5000), "", "want 16 to 4096"},
	} {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		secret, err := ReadSecret(jobenv.Security{TokenFile: path})
		if string(secret) != test.want || (err == nil) != (test.err == "") {
			t.Errorf("%q: %q, %v", test.text, secret, err)
		}
		if err != nil && (!strings.Contains(err.Error(), test.err) || !strings.Contains(err.Error(), jobenv.TokenFileVar) ||
			test.text != "" && strings.Contains(err.Error(), strings.TrimSpace(test.text))) {
			t.Errorf("%q: %v", test.text, err)
		}
	}
	path := filepath.Join(dir, "0")
	file := jobenv.Security{TokenFile: path}
	for mode, isOpen := range map[os.FileMode]bool{0o600: false, 0o400: false, 0o711: false, 0o644: true, 0o640: true, 0o620: true, 0o602: true} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("%s=%q: others can read or change it (mode %04o): chmod 600 %s", jobenv.TokenFileVar, path, mode, path)
		if secret, err := ReadSecret(file); isOpen != (err != nil) || isOpen && err.Error() != want || isOpen != (secret == nil) {
			t.Errorf("mode %04o: %q, %v", mode, secret, err)
		}
	}
	if os.Geteuid() == 0 { // a file of another user, as in a container, which only root can make
		if err := errors.Join(os.Chmod(path, 0o644), os.Chown(path, 1, 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadSecret(file); err != nil {
			t.Error(err)
		}
	}
	if secret, err := ReadSecret(jobenv.Security{Token: " 0123456789abcdef\n"}); string(secret) != "0123456789abcdef" || err != nil {
		t.Errorf("%s: %q, %v", jobenv.TokenVar, secret, err)
	}
	if _, err := ReadSecret(jobenv.Security{Token: "short"}); err == nil || !strings.Contains(err.Error(), jobenv.TokenVar+": the secret has 5 bytes") {
		t.Error(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadSecret(jobenv.Security{TokenFile: pipe}); err == nil || !strings.Contains(err.Error(), "want a regular file, got a named pipe") {
		t.Errorf("a pipe that nobody writes to: %v", err)
	}
	if _, err := ReadSecret(jobenv.Security{TokenFile: filepath.Join(dir, "none")}); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), jobenv.TokenFileVar) {
		t.Error(err)
	}
	if secret, err := ReadSecret(jobenv.Security{}); secret != nil || err != nil {
		t.Errorf("no file: %q, %v", secret, err)
	}
}
