package examples

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

// TestGorgoniaOnSeveralRanksEqualsOne compares losses, for a number of ranks that divides the batch evenly and one
// that does not. The last batch is smaller than the others.
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
	block := regexp.MustCompile("(?s)```diff\n(.*?)```").FindStringSubmatch(read("README.md"))
	if block == nil {
		t.Fatal("the README shows no difference")
	}
	// contains checks that program contains the lines of the diff in order, without those that begin with
	// drop.
	contains := func(program, drop, lines string) error {
		rest := program
		for line := range strings.Lines(lines) {
			if line == " ...\n" || strings.HasPrefix(line, drop) {
				continue
			}
			_, after, ok := strings.Cut(rest, "\n"+line[1:])
			if !ok {
				return fmt.Errorf("%q is missing, or not after the line before it", line)
			}
			rest = "\n" + after
		}
		return nil
	}
	if err := contains(one, "+", block[1]); err != nil {
		t.Errorf("single/main.go: %v", err)
	}
	if err := contains(several, "-", block[1]); err != nil {
		t.Errorf("main.go: %v", err)
	}
}

// A program that uses none of Gorgonia links none of it: gorgonia.org/tensor alone, with
// Arrow and protobuf, makes a program three times as large.
func TestProgramsContainNoGorgonia(t *testing.T) {
	testkit.Need(t, testkit.Command("go"))
	out, err := exec.Command("go", "list", "-deps", "./toy", "./fashion", "./gpt", "./custom", "./recover").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dep := range strings.Fields(string(out)) {
		for _, heavy := range []string{"gorgonia.org/", "github.com/apache/arrow", "google.golang.org/protobuf"} {
			if strings.HasPrefix(dep, heavy) {
				t.Errorf("linked: %s", dep)
			}
		}
	}
}
