package examples

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

// TestGorgoniaOnSeveralRanksEqualsOne compares the losses of several ranks with those of one rank. One number of ranks
// divides the batch size evenly, the other does not. The last batch of an epoch is smaller than the others.
func TestGorgoniaOnSeveralRanksEqualsOne(t *testing.T) {
	testkit.Long(t)
	const steps = 16
	for _, c := range []struct {
		flag           string
		ranks, buckets int
		tolerance      float64
	}{
		{"--float32=false", 3, 5, 1e-9},
		{"--float32", 2, 4, 1e-5},
	} {
		dir := t.TempDir()
		want := losses(t, testkit.Output(t, command(t, dir, "single", "--hidden", "32", c.flag)))
		out := launch(t, dir, c.ranks, "gorgonia", "--hidden", "32", c.flag, "--bucket-cap-mb", "0.002", "--trace", "trace.json").Stdout
		checkLosses(t, losses(t, out), want, steps, c.tolerance)
		digest(t, out, c.ranks)
		if n := checkTrace(t, dir, c.buckets*steps)["gradient of w0"]; n != steps {
			t.Errorf("%d gradients of w0 in the trace of %d steps", n, steps)
		}
	}
}

// TestGorgoniaREADMEShowsTheDifference checks that the lines of the README's diff are in the two programs.
func TestGorgoniaREADMEShowsTheDifference(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join("gorgonia", path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	one, several := read("single/main.go"), read("main.go")
	_, diff, _ := strings.Cut(read("README.md"), "```diff\n")
	diff, _, ok := strings.Cut(diff, "```")
	if !ok {
		t.Fatal("the README shows no difference")
	}
	for line := range strings.Lines(diff) {
		kind, text := line[0], "\n"+line[1:]
		switch {
		case line == " ...\n":
		case kind != '+' && !strings.Contains(one, text):
			t.Errorf("single/main.go lacks %q", line)
		case kind != '-' && !strings.Contains(several, text):
			t.Errorf("main.go lacks %q", line)
		}
	}
}

// A program that uses none of Gorgonia links none of it: gorgonia.org/tensor alone, with
// Arrow and protobuf, makes a program three times as large.
func TestProgramsContainNoGorgonia(t *testing.T) {
	testkit.Need(t, testkit.Command("go"))
	out, err := exec.Command("go", "list", "-deps", "./toy", "./fashion", "./gpt", "./custom", "./survive").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dep := range strings.Fields(string(out)) {
		for _, heavy := range []string{"gorgonia.org/", "github.com/apache/arrow", "google.golang.org/protobuf/proto"} {
			if strings.HasPrefix(dep, heavy) {
				t.Errorf("linked: %s", dep)
			}
		}
	}
}
