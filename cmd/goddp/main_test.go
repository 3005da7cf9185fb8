package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/launcher"
)

// failOnceVar names a file. A process that can remove it fails.
const failOnceVar = "GODDP_TEST_FAIL_ONCE"

// stuckVar makes a process wait for an hour.
const stuckVar = "GODDP_TEST_STUCK"

// smallVar makes goddp doctor measure little on GPUs.
const smallVar = "GODDP_TEST_SMALL"

func TestMain(m *testing.M) {
	launcher.ReaperMain()
	testkit.Main(m, map[string]func(){"goddp": func() {
		if file := os.Getenv(failOnceVar); file != "" && os.Remove(file) == nil {
			os.Exit(1)
		}
		if os.Getenv(stuckVar) != "" {
			time.Sleep(time.Hour)
		}
		if os.Getenv(smallVar) != "" {
			gpuPairBytes, allReduceSize, productSize = 1<<10, 1<<10, 16
		}
		main()
	}})
}

// process is a process of goddp, on the CPU.
func process(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := testkit.Self(t, "goddp", args...)
	cmd.Env = append(cmd.Env, "GODDP_DEVICE=cpu")
	return cmd
}

// goddp runs a command of goddp that does not end the process.
func goddp(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var files [2]*os.File
	for i, stream := range []**os.File{&os.Stdout, &os.Stderr} {
		f, err := os.Create(filepath.Join(t.TempDir(), "output"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		defer func(before *os.File) { *stream = before }(*stream)
		files[i], *stream = f, f
	}
	code = run(args)
	var said [2]string
	for i, f := range files {
		text, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		said[i] = string(text)
	}
	return code, said[0], said[1]
}

func TestUsageErrors(t *testing.T) {
	for line, want := range map[string]string{
		"":                                  "goddp: no command",
		"help benchmark":                    `goddp: unknown command "benchmark"`,
		"benchmark":                         `goddp: unknown command "benchmark"`,
		"page":                              "goddp page: want at least one folder of a run, got none\n",
		"page --addr=99999 run":             `goddp page: --addr "99999": port 99999: want 0 to 65535`,
		"bench":                             "goddp bench: want the name of a collective\n",
		"bench all_reduce 4":                "goddp bench: want one collective, got 2: all_reduce 4",
		"bench gossip":                      `unknown collective "gossip", want all_reduce, `,
		"bench all_reduce -b 1G":            "--maxbytes 32M is less than --minbytes 1G",
		"bench all_reduce -b 0":             `--minbytes "0": want a number of bytes, 1 or more`,
		"bench all_reduce -e 1T":            `--maxbytes "1T"`,
		"bench all_reduce -n 0":             "--iters 0: want 1 or more",
		"bench all_reduce --warmup-iters=x": "-w, --warmup-iters",
		"bench all_reduce -f 1":             "--stepfactor 1: want 2 or more",
		"bench all_reduce -d int8":          `unknown element type "int8", want uint8, `,
		"bench all_reduce -o xor":           `unknown reduction "xor", want sum, `,
		"bench all_reduce -g 2":             "-g",
	} {
		code, stdout, stderr := goddp(t, strings.Fields(line)...)
		if code != 2 || stdout != "" || !strings.Contains(stderr, want) || !strings.Contains(stderr, "--help' for how to call it.\n") {
			t.Errorf("%q: exit code %d; it printed %q and\n%s\nwant %q", line, code, stdout, stderr, want)
		}
	}
}

// Errors begin with the command, once.
func TestErrorsNameTheCommand(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for line, want := range map[string]string{
		"page " + none:                      "goddp page: " + none + ": the folder holds no run",
		"plot " + none:                      "goddp plot: open " + none + ": no such file",
		"dump 0":                            `goddp dump: no flight record of job "0"`,
		"trace " + none:                     "goddp trace: open " + none + ": no such file",
		"tokens " + none + " -o x":          "goddp tokens: stat " + none + ": no such file",
		"checkpoint ls " + none:             "goddp checkpoint: open " + none + ": no such file",
		"checkpoint convert " + none + " x": "goddp checkpoint: stat " + none + ": no such file",
	} {
		code, stdout, stderr := goddp(t, strings.Fields(line)...)
		if code != 1 || stdout != "" || !strings.HasPrefix(stderr, want) {
			t.Errorf("%q: exit code %d; it printed %q and\n%s\nwant %q", line, code, stdout, stderr, want)
		}
	}
}

func TestHelp(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"-h"}, {"help"}, {"help", "help"}, {"--help", "--help"}, {"-h", "--help"}} {
		code, stdout, stderr := goddp(t, args...)
		for _, c := range commands {
			if !strings.Contains(stdout, "  "+c.name+" ") || code != 0 || stderr != "" {
				t.Errorf("%v: exit code %d; it printed %q and\n%s", args, code, stderr, stdout)
			}
		}
	}
	underscore := regexp.MustCompile(`--[a-z-]+_`) // flags are printed with dashes
	for _, c := range commands {
		for _, args := range [][]string{{c.name, "--help"}, {"help", c.name}} {
			code, stdout, stderr := goddp(t, args...)
			if code != 0 || stderr != "" || !strings.Contains(stdout, "goddp "+c.name+" ") || underscore.MatchString(stdout) {
				t.Errorf("%v: exit code %d; it printed %q and\n%s", args, code, stderr, stdout)
			}
		}
	}
	if code, stdout, stderr := goddp(t, "--version"); code != 0 || !strings.HasPrefix(stdout, "goddp ") || stderr != "" {
		t.Errorf("--version: exit code %d; it printed %q and\n%s", code, stderr, stdout)
	}
}

// Output that is lost on a full disk is an error.
func TestFullDisk(t *testing.T) {
	testkit.Need(t, testkit.Linux)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	defer func(before *os.File) { os.Stdout = before }(os.Stdout)
	os.Stdout = full
	lines := []string{"--help", "--version", "checkpoint ls " + t.TempDir()}
	for _, c := range commands {
		lines = append(lines, c.name+" --help")
	}
	for _, line := range lines {
		if code := run(strings.Fields(line)); code != 1 {
			t.Errorf("goddp %s: exit code %d, want 1", line, code)
		}
	}
}
