package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/launcher"
)

// markVar is in the environment of every process of a test's job, so that the test can find these processes itself.
const markVar = "GOLAUNCH_TEST_MARK"

func TestMain(m *testing.M) {
	launcher.ReaperMain()
	testkit.Main(m, map[string]func(){"golaunch": main, "join": func() { comm.Main(join) }})
}

// golaunch returns a command that runs golaunch with extra variables NAME=value.
func golaunch(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := testkit.Self(t, "golaunch", args...)
	cmd.Env = append(append(cmd.Env, markVar+"="+t.Name()), env...)
	return cmd
}

// start starts golaunch, and waits until n lines match a regular expression.
func start(t *testing.T, cmd *exec.Cmd, pattern string, n int) *testkit.Process {
	t.Helper()
	p := testkit.Start(t, cmd)
	p.Await(pattern, n)
	return p
}

func runIt(t *testing.T, env []string, args ...string) testkit.Result {
	t.Helper()
	return testkit.Run(t, golaunch(t, env, args...))
}

func TestExitCodes(t *testing.T) {
	for script, want := range map[string]int{
		`exit 0`:                          0,
		`[ $RANK != 1 ] || exit 7`:        7,
		`[ $RANK != 1 ] || kill -SEGV $$`: 139,
	} {
		got := runIt(t, nil, "--nproc-per-node=2", "bash", "-c", script)
		if got.Code != want || strings.Contains(got.Stderr, "bash FAILED") != (want != 0) {
			t.Errorf("%q: exit code %d, want %d; stderr:\n%s", script, got.Code, want, got.Stderr)
		}
	}
}

// parse parses a command line without environment.
func parse(t *testing.T, args ...string) *options {
	t.Helper()
	o, err := parseFlags(args, func(string) (string, bool) { return "", false })
	if err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	return o
}

// Every flag, with dashes or underscores, and every PET_ variable reach the launcher. The program's own flags do not.
func TestFlagsReachTheLauncher(t *testing.T) {
	streams := func(text string) launcher.StreamMap {
		m, err := launcher.ParseStreamMap(text)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	want := &launcher.Config{
		Workers: 11, Stdin: os.Stdin, StdinRank: 10, VirtualLocalRank: true, Role: "eval", RunID: "job", MaxRestarts: 2, ShutdownTimeout: 1500 * time.Millisecond,
		MinWorkers: 3, SilenceLimit: 4500 * time.Millisecond, PollInterval: 200 * time.Millisecond, LinePrefix: "${rank}>", LocalRanksFilter: []int{1, 10}, LogDir: "logs",
		Redirects: streams("10:3"), Tee: streams("1:1"), JSONLines: true, ErrorFile: "error.json",
		MasterAddr: "a", MasterPort: 7, Nodes: &launcher.Nodes{
			Min: 2, Max: 4, Rank: 1, Endpoint: "b:29400", LocalAddr: "10.0.0.1",
			JoinTimeout: 3 * time.Second, LastCall: 4 * time.Second, Heartbeat: 5 * time.Second,
		},
	}
	values := map[string]string{
		"nproc-per-node": "11", "virtual-local-rank": "true", "role": "eval", "rdzv-id": "job", "max-restarts": "2", "shutdown-timeout": "1.5",
		"on-failure": "restart", "min-workers": "3", "silence-limit": "4.5", "monitor-interval": "0.2", "local-ranks-filter": "1,10", "log-dir": "logs", "redirects": "10:3", "tee": "1:1", "log-format": "json",
		"master-addr": "a", "master-port": "7", "nnodes": "2:4", "node-rank": "1", "rdzv-backend": "c10d",
		"rdzv-endpoint": "b", "local-addr": "10.0.0.1", "token-file": "secret", "insecure": "true",
		"rdzv-conf": "join_timeout=3,last_call_timeout=4,keep_alive_interval=5", "signals-to-handle": "SIGUSR1",
		"stdin": "10", "start-method": "spawn", "event-log-handler": "null", "logs-specs": "x", // without effect
	}
	variables := map[string]string{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank}>", "TORCHELASTIC_ERROR_FILE": "error.json"}
	var dashes, underscores []string
	petVariables := map[string]string{"PET_HELP": "1"} // without effect
	for name, value := range values {
		dashes = append(dashes, "--"+name+"="+value)
		underscores = append(underscores, "--"+strings.ReplaceAll(name, "-", "_")+"="+value)
		petVariables["PET_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))] = value
	}
	for name, from := range map[string]struct {
		args []string
		pet  map[string]string
	}{"dashes": {dashes, map[string]string{"PET_ROLE": "train"}}, "underscores": {underscores, nil}, "variables": {nil, petVariables}} {
		o, err := parseFlags(append(from.args, "train", "--role", "x"), func(name string) (string, bool) {
			if value, ok := from.pet[name]; ok {
				return value, true
			}
			value, ok := variables[name]
			return value, ok
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got, err := o.config()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, entry := range []string{"GODDP_TOKEN_FILE=secret", "GODDP_INSECURE=1"} {
			if !slices.Contains(got.Env, entry) {
				t.Errorf("%s: the workers' environment lacks %s", name, entry)
			}
		}
		if got.Env = nil; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got\n%+v\n%+v, want\n%+v\n%+v", name, got, got.Nodes, want, want.Nodes)
		}
		if !slices.Equal(o.command, []string{"train", "--role", "x"}) || !slices.Equal(o.signals, []os.Signal{syscall.SIGUSR1}) {
			t.Errorf("%s: program %q, signals %v", name, o.command, o.signals)
		}
	}

	password := writeFile(t, "password", "sesame\n")
	o := parse(t, "--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=a,b:1", "--rdzv-conf=timeout=3,protocol=https,cacert=c,cert=d,key=e,user=f,password_file="+password, "train")
	got, err := o.rendezvous.config()
	if want := (&launcher.Nodes{Min: 2, Max: 2, JoinTimeout: 3 * time.Second, Etcd: &launcher.Etcd{
		Endpoints: []string{"a:2379", "b:1"}, HTTPS: true, CAFile: "c", CertFile: "d", KeyFile: "e", Username: "f", Password: "sesame",
	}}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("etcd: got %+v, %v, want %+v", got, err, want)
	}
	static, err := parse(t, "--nnodes=2", "--node-rank=1", "--master-addr=a", "train").rendezvous.config()
	if want := (&launcher.Nodes{Min: 2, Max: 2, Static: true, Rank: 1, Endpoint: "a:29400"}); err != nil || !reflect.DeepEqual(static, want) {
		t.Errorf("static: got %+v, %v, want %+v", static, err, want)
	}
	// torchrun wants an IPv6 address in brackets, and MASTER_ADDR has none.
	if o := parse(t, "--master-addr=[::1]", "--rdzv-endpoint=[::1]", "train"); o.rendezvous.masterAddr != "::1" || withPort(o.rendezvous.endpoint, 7) != "[::1]:7" {
		t.Errorf("IPv6: got %q, and the endpoint %q", o.rendezvous.masterAddr, withPort(o.rendezvous.endpoint, 7))
	}
	if one, err := parse(t, "--standalone", "--rdzv-endpoint=host.invalid:29400", "train").rendezvous.config(); err != nil || one != nil {
		t.Errorf("one node: got %+v, %v", one, err)
	}
}

// writeFile writes a file of a temporary folder, which this user alone can read, and returns its path.
func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestUsageErrors(t *testing.T) {
	empty := t.TempDir()
	library := filepath.Dir(writeFile(t, "lib.go", "package lib\n"))
	pipe := filepath.Join(t.TempDir(), "main.go")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args string
		env  string
		want string // in the error
	}{
		{"", "", "no program"},
		{"--nproc-per-node 2", "", "no program"},
		{"--frobnicate true", "", "unknown flag: --frobnicate"},
		{"--nproc 2 true", "", "unknown flag: --nproc; is it --nproc-per-node?"},
		{"--logdir=x true", "", "unknown flag: --logdir; is it --log-dir?"},
		{"--use_env train.py", "", "golaunch has no such thing: every worker has LOCAL_RANK in its environment"},
		{"-np 2 true", "", "unknown shorthand flag: 'n' in -np"},
		{"--run-path train.py", "", "--run-path train.py: want the absolute path"},
		{"--run-path /none.py", "", "/none.py: no such file"},
		{"--run-path -m train", "", "cannot be combined with --run-path"},
		{"--print-completion bash true", "", `--print-completion "bash": golaunch has no such thing`},
		{"--numa-binding node true", "", `--numa-binding "node": golaunch has no such thing`},
		{"--duplicate-stdout-filters a true", "", "--local-ranks-filter"},
		{"--duplicate-stderr-filters a true", "", "--tee 2"},
		{"true", "PET_RUN_PATH=1", "--run-path true: want the absolute path"},
		{"true", "PET_NUMA_BINDING=node", `PET_NUMA_BINDING="node": golaunch has no such thing`},
		{"--nproc-per-node", "", "nproc-per-node"},
		{"--nproc-per-node x true", "", `--nproc-per-node "x": want a number`},
		{"--nproc-per-node 0 true", "", `--nproc-per-node "0"`},
		{"--nproc_per_node -3 true", "", `--nproc-per-node "-3"`},
		{"--nnodes 2 true", "", "--nnodes 2 needs --master-addr"},
		{"--log-format xml true", "", `--log-format "xml": want text or json`},
		{"--nnodes 1:4 true", "", "want one number with --rdzv-backend static"},
		{"--nnodes 4:1 true", "", `--nnodes "4:1": want a number of nodes, or MIN:MAX`},
		{"--nnodes 0 true", "", `--nnodes "0": want a number of nodes`},
		{"--nnodes 2:20:30 true", "", "want a number of nodes"},
		{"--node-rank 1 true", "", "want 0, the rank of the only node"},
		{"--max-restarts -1 true", "", `--max-restarts "-1"`},
		{"--on-failure ignore true", "", `--on-failure "ignore": want restart, shrink or replace`},
		{"--min-workers 0 true", "", `--min-workers "0": want a number, 1 or more`},
		{"--nproc-per-node 2 --min-workers 3 true", "", "--min-workers 3: want at most --nproc-per-node, 2"},
		{"--on-failure replace --silence-limit 0.5 true", "", `--silence-limit "0.5": want a number of seconds, 1 or more`},
		{"--master-port 99999 true", "", `--master-port "99999"`},
		{"--master-addr 127.0.0.1:5 true", "", "--master-addr"},
		{"--nnodes 2 --node-rank 2 true", "", "--node-rank 2: want less than --nnodes, 2"},
		{"--nnodes 2 --standalone true", "", "--standalone runs a job of one node, but --nnodes is 2"},
		{"--rdzv-backend etcd-v2 true", "", "etcd (version 3)"},
		{"--rdzv-backend zookeeper true", "", `--rdzv-backend "zookeeper": want static, c10d or etcd`},
		{"--rdzv-backend c10d --nnodes 2 true", "", "--rdzv-backend c10d needs --rdzv-endpoint"},
		{"--rdzv-endpoint host:port true", "", `--rdzv-endpoint "host:port": want host or host:port`},
		{"--rdzv-endpoint http://host:2379 true", "", "want host or host:port"},
		{"--rdzv-endpoint a,b --rdzv-backend c10d --nnodes 2 true", "", "want one endpoint"},
		{"--nnodes 2 --master-addr a --master-port 29400 true", "", "--master-port 29400 is the port at which the nodes meet"},
		{"--rdzv-conf is_host=1 true", "", `"is_host" is not one of cacert, cert, join_timeout`},
		{"--rdzv-conf join_timeout=soon true", "", "join_timeout: want a number of seconds"},
		{"--rdzv-conf last_call_timeout=0 true", "", "last_call_timeout: want a number of seconds above 0"},
		{"--rdzv-conf protocol=gopher true", "", "protocol: want http or https"},
		{"--rdzv-backend etcd --rdzv-endpoint h --nnodes 2 --rdzv-conf cacert=x true", "", "cacert and cert need protocol=https"},
		{"--rdzv-backend etcd --rdzv-endpoint h --nnodes 2 --rdzv-conf protocol=https,cert=x true", "", "want both cert and key, or neither"},
		{"--shutdown-timeout soon true", "", "--shutdown-timeout"},
		{"--monitor-interval 0 true", "", "--monitor-interval"},
		{"--tee 4 true", "", `--tee "4"`},
		{"--redirects 0:3,0:1 true", "", "local rank 0 is named twice"},
		{"--redirects 2:3 true", "", "local rank 2: want less than --nproc-per-node, 1"},
		{"--local-ranks-filter 1 true", "", "local rank 1: want less than --nproc-per-node, 1"},
		{"--stdin 1 true", "", "--stdin: local rank 1: want less than --nproc-per-node, 1"},
		{"--stdin all true", "", `--stdin "all": want a local rank, or none`},
		{"--signals-to-handle SIGNAL true", "", "SIGNAL"},
		{"--signals-to-handle SIGKILL true", "", "SIGKILL cannot be handled"},
		{"-m --no-python mod", "", "--no-python"},
		{"--page 9400 true", "", "write --page=9400"},
		{"--page=99999 true", "", `--page "99999": port 99999: want 0 to 65535`},
		{"--page=foo:bar true", "", `--page "foo:bar": port bar: want 0 to 65535`},
		{"--page 0.0.0.0:9400 true", "", "write --page=0.0.0.0:9400"},
		{"true", "PET_NPROC_PER_NODE=many", `PET_NPROC_PER_NODE="many"`},
		{"true", "PET_STANDALONE=perhaps", `PET_STANDALONE="perhaps"`},
		{"true", "GODDP_FLIGHT_ENTRIES=many", `GODDP_FLIGHT_ENTRIES="many"`},
		{"true", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=-1", `TORCH_ELASTIC_SHUTDOWN_TIMEOUT="-1"`},
		{"no-such-program-anywhere", "", "no-such-program-anywhere: there is no such program"},
		{"./no-such-file", "", "./no-such-file: there is no such program"},
		{"none.py", "", "none.py: no such file"},
		{"none.go", "", "none.go: no such file"},
		{writeFile(t, "data", "x"), "", "data is not executable"},
		{empty, "", empty + " is a folder without Go files"},
		{filepath.Join(library, "lib.go"), "", "lib.go is of package lib; want package main"},
		{library, "", library + " holds package lib; want package main"},
		{filepath.Dir(pipe), "", "main.go is not a regular file but a named pipe"},
		{writeFile(t, "x.py", ""), "PYTHON_EXEC=/no/python", "/no/python"},
	} {
		t.Run(test.env+" "+test.args, func(t *testing.T) {
			if name, value, isSet := strings.Cut(test.env, "="); isSet {
				t.Setenv(name, value)
			}
			o, err := parseFlags(strings.Fields(test.args), os.LookupEnv)
			if err == nil {
				_, err = findProgram(t.Context(), o)
			}
			if _, isUsage := err.(*usageError); !isUsage || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want a usage error with %q", err, test.want)
			}
		})
	}
}

// A user who calls golaunch wrongly gets one or two lines, and exit code 2. What is wrong with the secret names the flag or the variable.
func TestComplaints(t *testing.T) {
	open, folder := writeFile(t, "job.token", "the secret of the job"), t.TempDir()
	pipe := filepath.Join(t.TempDir(), "pipe.token")
	if err := errors.Join(os.Chmod(open, 0o644), syscall.Mkfifo(pipe, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, env, want string }{
		{"--nproc-per-node x true", "", `--nproc-per-node "x": want a number`},
		{"--nnodes 2 --master-addr h true", "", "--token-file or GODDP_TOKEN_FILE"},
		{"--nnodes 2 --master-addr h --token-file /none true", "", `--token-file "/none": no such file or directory` + "\n"},
		{"--hosts a:1 --token-file /none true", "", `--token-file "/none": no such file or directory` + "\n"},
		{"--token-file " + pipe + " true", "", fmt.Sprintf("--token-file %q: want a regular file, got a named pipe\n", pipe)},
		{"--token-file " + open + " true", "", fmt.Sprintf("--token-file %q: others can read or change it (mode 0644): chmod 600 %s\n", open, open)},
		{"true", "GODDP_TOKEN_FILE=" + folder, fmt.Sprintf("GODDP_TOKEN_FILE=%q: is a directory\n", folder)},
		{"true", "GODDP_TOKEN=short", "GODDP_TOKEN: the secret has 5 bytes, want 16 to 4096\n"},
	} {
		got := runIt(t, []string{test.env}, strings.Fields(test.args)...)
		if got.Code != 2 || got.Stdout != "" || strings.Count(got.Stderr, "\n") != 2 || !strings.HasPrefix(got.Stderr, "golaunch: ") || !strings.Contains(got.Stderr, test.want) {
			t.Errorf("%s golaunch %s: %+v, want %q", test.env, test.args, got, test.want)
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	for arg, want := range map[string]string{"-h": "PROGRAM", "--version": "golaunch "} {
		if got := runIt(t, []string{"PET_NNODES=nonsense"}, arg); got.Code != 0 || !strings.Contains(got.Stdout, want) || got.Stderr != "" {
			t.Errorf("%s: got %+v", arg, got)
		}
	}
}

// CUDA says how many GPUs there are, whatever CUDA_VISIBLE_DEVICES looks like.
func TestNoGPU(t *testing.T) {
	if files, _ := filepath.Glob("/dev/nvidia[0-9]*"); len(files) > 0 {
		t.Skip("there is a GPU here")
	}
	for _, visible := range []string{"0,1", "NoDevFiles", ""} {
		env := []string{"CUDA_VISIBLE_DEVICES=" + visible}
		want := fmt.Sprintf("golaunch: --nproc-per-node gpu: there is no GPU here that CUDA_VISIBLE_DEVICES=%q shows\n", visible)
		if got := runIt(t, env, "--nproc-per-node=gpu", "true"); got.Code != 2 || !strings.HasPrefix(got.Stderr, want) {
			t.Errorf("%s: %+v, want %q", env, got, want)
		}
	}
	if got := runIt(t, nil, "--nproc-per-node=auto", "--local-ranks-filter=0", "bash", "-c", "echo $WORLD_SIZE"); got.Stdout != fmt.Sprintf("[default0]: %d\n", runtime.NumCPU()) {
		t.Errorf("auto: %+v", got)
	}
}

// A file is run, or Python runs it. A folder, or a file that is not executable, does not hide a program on PATH.
func TestPrograms(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, mode := range map[string]os.FileMode{"script": 0o755, "p.py": 0o644, "cat": 0o644} {
		if err := os.WriteFile(name, []byte("#!/bin/sh\n"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir("true", 0o755); err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("script")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PYTHON_EXEC", script)
	onPath := func(name string) string {
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	for args, want := range map[string]string{
		"script arg":                "./script arg",
		"p.py arg":                  script + " -u p.py arg",
		"-m p arg":                  script + " -u -m p arg",
		"--run-path " + script:      script + " -u " + script,
		"--no-python script --flag": "./script --flag",
		"true":                      onPath("true"),
		"cat":                       onPath("cat"),
	} {
		if p, err := findProgram(t.Context(), parse(t, strings.Fields(args)...)); err != nil || strings.Join(p.args, " ") != want {
			t.Errorf("golaunch %s: got %+v, %v, want %s", args, p, err, want)
		}
	}
}

// golaunch builds Go programs in a temporary folder, and removes it.
func TestGoPrograms(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Command("go"))
	dir, temp := t.TempDir(), t.TempDir()
	const goMain = "package main\n\nimport (\n\t\"fmt\"\n\t\"os\"\n)\n\nfunc main() { fmt.Println(\"go\", os.Args[1], os.Getenv(\"RANK\")) }\n"
	for name, text := range map[string]string{
		"one.go": goMain, "pkg/main.go": goMain, "pkg/go.mod": "module example.com/pkg\n\ngo 1.24\n", "pkg/lib/lib.go": "package lib\n",
		"broken/main.go": "package main\n\nfunc main() { undefinedName() }\n", "broken/go.mod": "module example.com/broken\n\ngo 1.24\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	in := func(folder string, args ...string) testkit.Result {
		t.Helper()
		cmd := golaunch(t, []string{"TMPDIR=" + temp}, args...)
		cmd.Dir = filepath.Join(dir, folder)
		return testkit.Run(t, cmd)
	}
	for _, got := range []testkit.Result{in("", "one.go", "arg"), in("", "./pkg", "arg"), in("pkg", "example.com/pkg", "arg")} {
		if got != (testkit.Result{Stdout: "[default0]: go arg 0\n"}) {
			t.Errorf("got %+v", got)
		}
	}
	if got := in("", "./broken"); got.Code != 1 || strings.Contains(got.Stderr, "--help") || !strings.Contains(got.Stderr, "undefinedName") {
		t.Errorf("a build error: got %+v", got)
	}
	for path, want := range map[string]string{"example.com/pkg/lib": "lib is package lib; want package main", "example.com/pkg/none": "example.com/pkg/none"} {
		if got := in("pkg", path); got.Code != 2 || !strings.Contains(got.Stderr, want) {
			t.Errorf("%s: got %+v", path, got)
		}
	}
	if left, err := os.ReadDir(temp); err != nil || len(left) != 0 {
		t.Errorf("temporary files are left: %v, %v", left, err)
	}
}

// A program on a file system that is mounted noexec is said to be there, also if golaunch has built it. GOTMPDIR is another
// folder to build in.
func TestNoExec(t *testing.T) {
	testkit.Long(t)
	testkit.Need(t, testkit.Root, testkit.Command("unshare"), testkit.Command("go"))
	dir, noexec := t.TempDir(), t.TempDir()
	source := filepath.Join(dir, "one.go")
	if err := os.WriteFile(source, []byte("package main\n\nfunc main() { println(\"it runs\") }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for script, want := range map[string]string{
		"TMPDIR=" + noexec + ` "$0" ` + source:   "one.go was built in " + noexec + ", whose file system is mounted noexec: set GOTMPDIR or TMPDIR to another folder\n",
		"GOTMPDIR=" + noexec + ` "$0" ` + source: "one.go was built in " + noexec + ", whose file system is mounted noexec",
		"cd " + filepath.Dir(dir) + "; GOTMPDIR=" + filepath.Base(dir) + " TMPDIR=" + noexec + ` "$0" ` + source: "it runs\n",
		"cp /bin/true " + noexec + `; "$0" ` + noexec + "/true":                                                  "/true cannot be executed: this user lacks the permission, or its file system is mounted noexec\n",
	} {
		cmd := golaunch(t, nil)
		host := exec.CommandContext(t.Context(), "unshare", "-m", "bash", "-c", "mount -t tmpfs -o noexec none "+noexec+"; "+script, cmd.Path)
		host.Env = cmd.Env
		if got := testkit.Run(t, host); !strings.Contains(got.Stderr, want) {
			t.Errorf("%s: %+v, want %q", script, got, want)
		}
	}
}

// Flags for one node, which torchrun also ignores there or which choose what golaunch does anyway.
func TestOneNodeTakesTheFlagsOfSeveral(t *testing.T) {
	got := runIt(t, nil, "--standalone", "--nnodes=1:1", "--rdzv-backend=c10d", "--rdzv-endpoint=host.invalid:29400", "--rdzv_id=7",
		"--rdzv-conf=timeout=900,last_call_timeout=5", "--local-addr=10.0.0.1", "bash", "-c", "echo $TORCHELASTIC_RUN_ID at $MASTER_ADDR; echo e >&2", "--not-a-flag")
	if want := (testkit.Result{Stdout: "[default0]: 7 at 127.0.0.1\n", Stderr: "[default0]: e\n"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// Each worker sees one GPU, as GPU 0.
func TestVirtualLocalRank(t *testing.T) {
	show := []string{"--virtual-local-rank", "--nproc-per-node=2", "bash", "-c", "echo $RANK $LOCAL_RANK of $LOCAL_WORLD_SIZE [${CUDA_VISIBLE_DEVICES-unset}]"}
	for visible, want := range map[string][2]string{"": {"", ""}, "5,GPU-7,9": {"5", "GPU-7"}, "unset": {"0", "1"}} {
		cmd := golaunch(t, []string{"CUDA_VISIBLE_DEVICES=" + visible}, show...)
		if visible == "unset" {
			cmd.Env = slices.DeleteFunc(cmd.Env, func(entry string) bool { return strings.HasPrefix(entry, "CUDA_VISIBLE_DEVICES=") })
		}
		got := testkit.Run(t, cmd)
		for rank, gpu := range want {
			if line := fmt.Sprintf("[default%d]: %d 0 of 2 [%s]\n", rank, rank, gpu); !strings.Contains(got.Stdout, line) {
				t.Errorf("CUDA_VISIBLE_DEVICES=%s: %+v, want %q", visible, got, line)
			}
		}
	}
	if got := runIt(t, []string{"CUDA_VISIBLE_DEVICES=3"}, show...); got.Code == 0 || !strings.Contains(got.Stderr, "CUDA_VISIBLE_DEVICES=3 names 1 GPUs, but each of the 2 workers") {
		t.Errorf("too few GPUs: %+v", got)
	}
}

// MASTER_ADDR and MASTER_PORT of one node are those that the user chose, and the store listens there. Without
// a choice, two jobs have different ports.
func TestMasterAddress(t *testing.T) {
	port, _ := testkit.Port(t)
	const show = "echo $MASTER_ADDR $MASTER_PORT; exec 3<>/dev/tcp/$MASTER_ADDR/$MASTER_PORT"
	got := runIt(t, nil, "--master-addr=127.0.0.1", "--master-port", fmt.Sprint(port), "bash", "-c", show)
	if want := fmt.Sprintf("[default0]: 127.0.0.1 %d\n", port); got.Code != 0 || got.Stdout != want {
		t.Errorf("got %+v, want %q", got, want)
	}
	start(t, golaunch(t, nil, "bash", "-c", "echo ready; exec sleep 1000"), "ready", 1)
	if got := runIt(t, nil, "bash", "-c", show); got.Code != 0 {
		t.Errorf("a second job on this host: got %+v", got)
	}
}
