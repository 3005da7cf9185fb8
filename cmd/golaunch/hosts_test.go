package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/cmd/internal/version"
	"github.com/goddp/goddp/internal/jobenv"
	"github.com/goddp/goddp/internal/testkit"
)

func TestParseHosts(t *testing.T) {
	for text, want := range map[string][]hostSpec{
		"a:4,b:2": {{"a", "4"}, {"b", "2"}}, "me@a,b": {{"me@a", ""}, {"b", ""}}, "a:auto, b:cpu": {{"a", "auto"}, {"b", "cpu"}},
		"": nil, "a,,b": nil, "a,a": nil, "a:0": nil, "-oProxyCommand=x": nil, "a b": nil,
	} {
		if got, err := parseHosts(text); !slices.Equal(got, want) && err == nil || (err == nil) != (want != nil) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
	}
}

// TestHostRequests checks what golaunch asks of each host.
func TestHostRequests(t *testing.T) {
	t.Setenv(jobenv.TokenVar, "0123456789abcdef")
	t.Setenv("NCCL_DEBUG", "INFO")
	program := filepath.Join(t.TempDir(), "train")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	o, err := parseFlags([]string{"--hosts", "a:4,b", "--max-restarts=2", "--nproc-per-node", "3", "--master-addr", "10.0.0.1", program, "--lr", "1"},
		func(name string) (string, bool) { return map[string]string{"PET_TEE": "3"}[name], name == "PET_TEE" })
	if err != nil {
		t.Fatal(err)
	}
	j, err := newHostsJob(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	first, second := string(j.hosts[0].request), string(j.hosts[1].request)
	for _, want := range []string{
		`"--max-restarts=2"`, `"--tee=3"`, `"--nproc-per-node=3"`, `"--rdzv-endpoint","10.0.0.1:2`, `"` + program + `","--lr","1"`,
		`"--nnodes","2"`, `"NCCL_DEBUG=INFO"`, `"Token":"0123456789abcdef"`, `"Sum":"`,
	} {
		if !strings.Contains(first, want) || !strings.Contains(second, want) {
			t.Errorf("no %s in the requests\n%s%s", want, first, second)
		}
	}
	if !strings.Contains(first, `"--node-rank","0","--nproc-per-node","4"`) || !strings.Contains(second, `"--node-rank","1","`) || strings.Count(second, "nproc-per-node") != 1 {
		t.Errorf("requests\n%s%s", first, second)
	}
	for args, want := range map[string]string{
		"--hosts a,b --nnodes 3:4 sh": "--nnodes 3:4 needs at least 3 hosts, but --hosts names 2", "--hosts a,b --rdzv-backend etcd sh": "--rdzv-backend etcd needs --rdzv-endpoint",
		"--hosts a,b --nnodes 3 sh": "--nnodes is 3, but --hosts names 2 hosts", "--hosts a --ssh= sh": "--ssh is empty",
	} {
		o, err := parseFlags(strings.Fields(args), func(string) (string, bool) { return "", false })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := newHostsJob(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	if _, err := newHostsJob(t.Context(), &options{command: []string{"./no-such-program"}, hosts: o.hosts}); err == nil || !strings.Contains(err.Error(), "at the same path on all hosts") {
		t.Error(err)
	}
}

// TestHostRefuses checks what a host says to a request that it cannot run as the user's side would.
func TestHostRefuses(t *testing.T) {
	program := filepath.Join(t.TempDir(), "train")
	if err := os.WriteFile(program, []byte("another program"), 0o700); err != nil {
		t.Fatal(err)
	}
	mine := version.Of("golaunch")
	for _, test := range []struct {
		r    nodeRequest
		want string
	}{
		{nodeRequest{Version: "golaunch v9"}, `on the host that started the job it is "golaunch v9"`},
		{nodeRequest{Version: mine, Program: program, Sum: strings.Repeat("0", 64)}, "and 000000000000... on the host that started the job: copy it"},
		{nodeRequest{Version: mine, Program: program + "2"}, "no such file or directory: copy the program to all hosts"},
		{nodeRequest{Version: mine, Dir: program + "2"}, "the job runs in the folder in which it was started"},
	} {
		if err := test.r.prepare(t.TempDir()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
}

// localShell returns a command in the place of ssh: a shell of this host.
func localShell(t *testing.T) string {
	t.Helper()
	ssh := filepath.Join(t.TempDir(), "ssh")
	if err := os.WriteFile(ssh, []byte("#!/bin/sh\nfor command; do :; done; eval \"$command\"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return ssh
}

// timeout(1) signals its child, and then the child's process group. golaunch --hosts takes that as one request, so the
// workers have more than hostsEnd to end.
func TestHostsTakeTwoSignalsAsOne(t *testing.T) {
	testkit.Long(t)
	cmd := golaunch(t, nil, "--hosts=a", "--ssh="+localShell(t), "--master-addr=127.0.0.1", "bash", "-c",
		`trap "sleep 2.5; echo saved; exit 0" TERM; echo ready; while :; do sleep 0.01; done`)
	p := start(t, cmd, "ready", 1)
	for n := range 2 {
		if n > 0 {
			time.Sleep(100 * time.Millisecond) // the kernel merges signals that come before the process runs
		}
		p.Signal(syscall.SIGTERM)
	}
	if code := p.Wait(); code != 143 {
		t.Errorf("exit code %d, want 143", code)
	}
	p.Expect("saved", 1)
}

// The host that failed first gives the job its exit code, not one that was stopped because of it. A shell takes the place of
// ssh and of golaunch on the hosts.
func TestHostThatFailedFirstGivesTheCode(t *testing.T) {
	dir := t.TempDir()
	ssh := filepath.Join(dir, "ssh")
	script := `#!/bin/sh
for arg; do host=$last last=$arg; done
cd "` + dir + `"
[ "$host" = a ] && echo $$ >new && mv new pid && exit 7
until [ -e pid ]; do sleep 0.01; done
while kill -0 $(cat pid) 2>/dev/null; do sleep 0.01; done # until golaunch has seen the end of a
sleep 0.1
exit 143
`
	if err := os.WriteFile(ssh, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if got := runIt(t, nil, "--hosts=a,b", "--ssh="+ssh, "--master-addr=127.0.0.1", "bash"); got.Code != 7 {
		t.Errorf("exit code %d, want 7; stderr:\n%s", got.Code, got.Stderr)
	}
}
