package examples

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestGorgoniaOnSeveralRanksEqualsOne compares losses, for numbers of ranks that divide the batch evenly
// and that do not. The last batch is smaller than the others.
func TestGorgoniaOnSeveralRanksEqualsOne(t *testing.T) {
	const steps = 16
	for flag, tolerance := range map[string]float64{"--float32=false": 1e-9, "--float32": 1e-5} {
		want := losses(t, run(t, t.TempDir(), "single", "--hidden", "32", flag))
		if len(want) != steps || want[steps-1] >= want[0] {
			t.Fatalf("%s: losses %v on one process", flag, want)
		}
		for _, ranks := range []int{2, 3, 4} {
			dir := t.TempDir()
			out := launch(t, dir, ranks, "gorgonia", "--hidden", "32", flag, "--bucket-cap-mb", "0.002", "--trace", "trace.json")
			got := losses(t, out)
			if len(got) != steps {
				t.Fatalf("%s: losses %v on %d ranks", flag, got, ranks)
			}
			for i := range want {
				if d := math.Abs(got[i]-want[i]) / want[i]; d > tolerance {
					t.Errorf("%s: step %d: loss %v on %d ranks, %v on one process", flag, i, got[i], ranks, want[i])
				}
			}
			var hashes []string
			for _, m := range hashLine.FindAllStringSubmatch(out, -1) {
				hashes = append(hashes, m[2])
			}
			if len(hashes) != ranks || len(slices.Compact(hashes)) != 1 {
				t.Errorf("%s: the parameters of %d ranks are %v", flag, ranks, hashes)
			}
			buckets := 5
			if flag == "--float32" {
				buckets = 4
			}
			if n := checkTrace(t, filepath.Join(dir, "trace.json"), buckets*steps)["gradient of w0"]; n != steps {
				t.Errorf("%d gradients of w0 in the trace of %d steps", n, steps)
			}
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

// TestGorgoniaInvalidFlags checks that sizes for which Gorgonia would panic are usage errors.
func TestGorgoniaInvalidFlags(t *testing.T) {
	for _, program := range []string{"single", "gorgonia"} {
		for _, args := range [][]string{{"--batch", "0"}, {"--hidden", "0"}, {"--layers", "-1"}, {"--epochs", "0"}, {"--samples", "0"}, {"more"}} {
			err := exec.CommandContext(t.Context(), filepath.Join(bin, program), args...).Run()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 2 {
				t.Errorf("%s %v: %v, want exit code 2", program, args, err)
			}
		}
	}
}

// A program that uses none of Gorgonia links none of it: gorgonia.org/tensor alone, with
// Arrow and protobuf, makes a program three times as large.
func TestProgramsContainNoGorgonia(t *testing.T) {
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
