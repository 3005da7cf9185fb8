// Package examples tests the example programs as a user runs them: it builds them, and golaunch starts
// them.
package examples

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

// command returns the command that runs a program in the folder dir.
func command(t *testing.T, dir, program string, args ...string) *exec.Cmd {
	t.Helper()
	bin := build(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, program), args...)
	cmd.Dir, cmd.Env = dir, testkit.Env("TMPDIR="+bin) // golaunch leaves records of failed jobs in TMPDIR
	return cmd
}

// build builds all programs and returns their folder.
func build(t *testing.T) string {
	t.Helper()
	return testkit.Build(t, "cmd/golaunch", "examples/toy", "examples/mlp", "examples/fashion", "examples/custom", "examples/gpt",
		"examples/resnet", "examples/survive", "examples/finetune", "examples/gorgonia", "examples/gorgonia/single")
}

// job returns the command that runs a program in dir under golaunch, on so many ranks. Arguments before the program are golaunch's.
func job(t *testing.T, dir string, ranks int, args ...string) *exec.Cmd {
	t.Helper()
	return command(t, dir, "golaunch", append([]string{"--nproc-per-node", strconv.Itoa(ranks)}, args...)...)
}

// launch runs a program in dir under golaunch. The job must succeed.
func launch(t *testing.T, dir string, ranks int, program string, args ...string) testkit.Result {
	t.Helper()
	return succeed(t, job(t, dir, ranks, append([]string{filepath.Join(build(t), program)}, args...)...))
}

func succeed(t *testing.T, cmd *exec.Cmd) testkit.Result {
	t.Helper()
	r := testkit.Run(t, cmd)
	if r.Code != 0 {
		t.Fatalf("%v: exit code %d", cmd, r.Code)
	}
	return r
}

// TestToyAveragesGradients checks that every rank prints the average of 7·rank over the ranks.
func TestToyAveragesGradients(t *testing.T) {
	testkit.Long(t)
	const ranks = 4
	dir := t.TempDir()
	out := launch(t, dir, ranks, "toy", "--trace", "trace.json").Stdout
	for r := range ranks {
		for _, line := range []string{
			fmt.Sprintf("rank %d: y=w*7*x: %d=5*7*%d", r, 35*r, r),
			fmt.Sprintf("rank %d: dy/dw=7*x: %d", r, 7*r),
			fmt.Sprintf("rank %d: reduced dy/dw: 10.5", r),
		} {
			if n := strings.Count(out, line+"\n"); n != 1 {
				t.Errorf("the output contains %q %d times, want once", line, n)
			}
		}
	}
	checkTrace(t, dir, 1)

	dir = t.TempDir()
	if out := testkit.Output(t, command(t, dir, "toy")); !strings.Contains(out, "rank 0: reduced dy/dw: 0\n") {
		t.Errorf("without golaunch: got\n%s", out)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("without --trace the program has written %v: %v", files, err)
	}
}

// checkTrace checks that the Chrome trace in dir holds forward and backward passes and the given number of
// reductions, each with its bucket and bytes. It returns the number of spans by name.
func checkTrace(t *testing.T, dir string, reductions int) map[string]int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, "trace.json"))
	if err != nil {
		t.Fatal(err)
	}
	var trace struct {
		TraceEvents []struct {
			Name, Ph, Cat string
			Args          map[string]any
		}
	}
	if err := json.Unmarshal(data, &trace); err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, e := range trace.TraceEvents {
		switch {
		case e.Ph != "X":
		case e.Cat != "communication":
			count[e.Name]++
		case e.Args["bucket"] == nil || e.Args["bytes"] == nil:
			t.Errorf("%s has the arguments %v", e.Name, e.Args)
		default:
			count["reductions"]++
		}
	}
	if count["reductions"] != reductions || count["forward"] == 0 || count["backward"] == 0 {
		t.Errorf("the trace holds %v, want %d reductions", count, reductions)
	}
	return count
}

var (
	lossLine = regexp.MustCompile(`(?m)step \d+ loss ([0-9.e+-]+)$`)
	hashLine = regexp.MustCompile(`(?m)rank \d+: params sha256 ([0-9a-f]{64})$`)
)

// losses returns the losses that a program printed.
func losses(t *testing.T, out string) []float64 {
	t.Helper()
	var ls []float64
	for _, m := range lossLine.FindAllStringSubmatch(out, -1) {
		l, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		ls = append(ls, l)
	}
	return ls
}

// digest returns the digest of the parameters, which all ranks must have printed.
func digest(t *testing.T, out string, ranks int) string {
	t.Helper()
	var sums []string
	for _, m := range hashLine.FindAllStringSubmatch(out, -1) {
		sums = append(sums, m[1])
	}
	if len(sums) != ranks || len(slices.Compact(sums)) != 1 {
		t.Fatalf("the parameters of %d ranks are %v", ranks, sums)
	}
	return sums[0]
}

// checkLosses checks that losses are near those that are wanted, and that these fall.
func checkLosses(t *testing.T, got, want []float64, steps int, tolerance float64) {
	t.Helper()
	if len(got) != steps || len(want) != steps || want[steps-1] >= want[0] {
		t.Fatalf("losses %v, want those of %d steps: %v", got, steps, want)
	}
	for i := range want {
		if d := math.Abs(got[i]/want[i] - 1); !(d <= tolerance) {
			t.Errorf("step %d: loss %.9g, want %.9g", i, got[i], want[i])
		}
	}
}

// TestMLPOnFourRanksEqualsOne compares four ranks with a batch of 32 each with one process with a batch
// of 128, and with four ranks with each communication hook.
func TestMLPOnFourRanksEqualsOne(t *testing.T) {
	testkit.Long(t)
	const steps = 10
	dir := t.TempDir()
	args := []string{"--size", "128", "--steps", strconv.Itoa(steps), "--lr", "0.1", "--bucket-cap-mb", "0.03"}
	var want []float64
	isHashed := false
	for line := range strings.Lines(testkit.Output(t, command(t, dir, "mlp", append(args, "--batch", "128", "--json")...))) {
		var entry struct {
			Loss *float64
			Hash string `json:"params_sha256"`
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			t.Fatalf("%v in %q", err, line)
		}
		if entry.Loss != nil {
			want = append(want, *entry.Loss)
		}
		isHashed = isHashed || entry.Hash != ""
	}
	if !isHashed {
		t.Error("no digest of the parameters")
	}
	digests := map[string]string{}
	for hook, tolerance := range map[string]float64{"": 1e-5, "bf16": 1e-4, "fp16": 1e-4, "int8": 1e-3, "powersgd": 1e-2} {
		out := launch(t, dir, 4, "mlp", append(args, "--batch", "32", "--trace", "trace.json", "--hook", hook)...).Stdout
		checkLosses(t, losses(t, out), want, steps, tolerance)
		sum := digest(t, out, 4)
		if other, ok := digests[sum]; ok {
			t.Errorf("the hooks %q and %q give the same parameters", hook, other)
		}
		digests[sum] = hook
		if n := checkTrace(t, dir, 3*steps)["optimizer"]; n != steps || !strings.Contains(out, "hidden behind computation") {
			t.Errorf("%d optimizer spans, want %d, and a line about the overlap", n, steps)
		}
	}
}

// TestCustomLearns runs examples/custom, which checks its operation's gradient and then trains.
func TestCustomLearns(t *testing.T) {
	testkit.Long(t)
	out := launch(t, t.TempDir(), 2, "custom").Stderr
	found := regexp.MustCompile(`step 300/300  loss (\S+)`).FindStringSubmatch(out)
	if found == nil {
		t.Fatal("no loss of step 300")
	}
	if loss, err := strconv.ParseFloat(found[1], 64); err != nil || loss > 0.1 {
		t.Errorf("the loss is %v (%v), want at most 0.1", loss, err)
	}
}

// Programs report invalid flags and data in one line.
func TestInvalidInput(t *testing.T) {
	testkit.Long(t)
	dir, model := t.TempDir(), smallModel(t)
	for name, size := range map[string]int{"text": 5, "cut.bin": 2000} {
		content := make([]byte, size)
		copy(content, "\x88\xd8\x34\x01\x01\x00\x00\x00\xe8\x03\x00\x00") // a header of 1000 tokens
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	for want, line := range map[string]string{
		"cut.bin: at byte 2000: truncated: the header says 1000 tokens, which take 3024 bytes": "gpt --tokens cut.bin",
		`--text "" and --tokens "": want exactly one of them`:                                  "gpt",
		"text: 5 bytes, want more than one window of 128":                                      "gpt --text text",
		`--size 1T, want one of ["124M" "1558M" "355M" "774M"]`:                                "gpt --text text --size 1T",
		"4 layers and 3 heads of a hidden size of 128":                                         "gpt --text text --heads 3",
		`no file matches "none*.bin"`:                                                          "gpt --tokens none*.bin",
		"--steps 5, --batch 8 and --warmup 9, want at least 1":                                 "gpt --text text --context 2 --steps 5 --warmup 9",
		"--prompt has 8 bytes, want 1 to 2, those of the context":                              "gpt --text text --context 2 --prompt too_long",
		"--length 64 and a --prompt of 109 tokens: want at most the 128 positions":             "finetune --data text --length 64 --prompt " + strings.Repeat("a", 100) + " --model " + model,
		"--length 129 and a --prompt of 9 tokens: want at most the 128 positions":              "finetune --data text --length 129 --model " + model,
		`--model 18, want one of ["101" "152" "50"]`:                                           "resnet --model 18",
		"--depths 1,2,3, want 4 numbers":                                                       "resnet --depths 1,2,3",
		"--depths 1,0,1,1, want positive numbers":                                              "resnet --depths 1,0,1,1",
		"--dtype f16, want f32 or bf16":                                                        "resnet --dtype f16",
		"empty: no images, want a folder with files for each class":                            "resnet --images empty",
		"--log, --resume and --save need --images":                                             "resnet --log run.jsonl",
		"--width 64, --classes 0, --size 224, --batch 64, --warmup 20, --step":                 "resnet --classes 0",
		"gorgonia: --hidden 0, --layers 4, ":                                                   "gorgonia --hidden 0",
		"single: --hidden 512, --layers -1, ":                                                  "single --layers -1",
		"install Debian's package dataset-fashion-mnist, or give --data a folder":              "fashion --data empty",
	} {
		args := strings.Fields(line)
		if r := testkit.Run(t, command(t, dir, args[0], args[1:]...)); r.Code == 0 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: exit code %d, no %q in\n%s", line, r.Code, want, r.Stderr)
		}
	}
}
