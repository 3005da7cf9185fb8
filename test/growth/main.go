// Command growth checks that training leaks nothing. It runs each example for some thousand steps, and
// compares the memory and the goroutines of its processes in the middle of the run with those at its
// end.
//
//	go run ./test/growth                     all examples, 2 ranks, 2,000 steps
//	go run ./test/growth gpt survive         these two examples
//	growth -bin DIR -data DIR                without Go: runs the programs in DIR
//
// Rank 0 of every example except gorgonia logs the size of its heap, its number of goroutines and its
// device memory (package progress). The command reads the resident memory of all ranks from /proc, and
// the memory of the GPUs from nvidia-smi if that is installed; no other program may use the GPUs. It
// ignores the first tenth of the steps, in which buffers and caches fill, and compares the medians of
// the two halves of the rest. The exit code is 1 if anything grew. examples/toy is left out, because it
// makes one step.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

var (
	bin   = flag.String("bin", "", "`folder` that holds golaunch and the examples; \"\" builds them")
	data  = flag.String("data", "/usr/share/datasets/fashion-mnist", "`folder` that holds Fashion-MNIST")
	ranks = flag.Int("ranks", 2, "number of ranks of each example")
	steps = flag.Int("steps", 2000, "least number of steps of each example")
)

// A job is an example with its flags. The example writes JSON lines to run.jsonl in its folder, or to
// its output.
type job struct {
	name   string
	flags  []string
	launch []string // flags of golaunch
}

func jobs() []job {
	n := strconv.Itoa(*steps)
	epochs := strconv.Itoa(1 + *steps/(60000/64 / *ranks))
	log := []string{"--log", "run.jsonl"}
	saves := append(log, "--resume", "checkpoints", "--save-every", "100")
	return []job{
		{name: "fashion", flags: slices.Concat([]string{"--model", "mlp", "--data", *data, "--epochs", epochs}, saves)},
		{name: "fashion", flags: slices.Concat([]string{"--model", "cnn", "--data", *data, "--epochs", epochs}, saves)},
		{name: "gpt", flags: slices.Concat([]string{"--text", "text", "--layers", "2", "--embed", "64", "--context", "64", "--steps", n}, saves)},
		{name: "custom", flags: slices.Concat([]string{"--steps", n}, log)},
		{name: "mlp", flags: []string{"--size", "256", "--batch", "32", "--steps", n, "--json"}},
		{name: "survive", flags: append([]string{"--epochs", strconv.Itoa(1 + *steps/(10000/50 / *ranks))}, log...), launch: []string{"--on-failure", "shrink"}},
		{name: "gorgonia", flags: []string{"--hidden", "32", "--epochs", strconv.Itoa(*steps / 4)}},
	}
}

// limits say by how much the second half of a run may exceed the first, for each kind of quantity: by
// the absolute amount, or by a part of the first half's if that is more.
var limits = []struct {
	kind     string
	absolute float64
	part     float64
}{
	{"heap_bytes", 256 << 10, 0.02},
	{"goroutines", 1, 0},
	{"device_bytes", 256 << 10, 0.01}, // the arena's peak depends on when the garbage collector runs
	{"rss_bytes", 4 << 20, 0.02},
	{"gpu_bytes", 8 << 20, 0.01},
}

// A sample holds the quantities of the processes at a step.
type sample struct {
	step int
	held map[string]float64 // by kind
}

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := campaign(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "growth:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

// campaign runs the examples that the arguments name, or all, and reports whether nothing grew.
func campaign(ctx context.Context) (ok bool, err error) {
	work, err := os.MkdirTemp("", "growth-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(work)
	if *bin == "" {
		*bin = filepath.Join(work, "bin")
		build := exec.CommandContext(ctx, "go", "build", "-o", *bin+"/", "./cmd/golaunch",
			"./examples/fashion", "./examples/gpt", "./examples/custom", "./examples/mlp", "./examples/survive", "./examples/gorgonia")
		if out, err := build.CombinedOutput(); err != nil {
			return false, fmt.Errorf("building: %w\n%s", err, out)
		}
	}
	if *bin, err = filepath.Abs(*bin); err != nil {
		return false, err
	}
	if *bin, err = filepath.EvalSymlinks(*bin); err != nil { // /proc shows the path without symbolic links
		return false, err
	}
	ok = true
	fmt.Printf("%-12s %6s %-13s %14s %14s %12s\n", "example", "steps", "what", "middle", "end", "growth")
	for i, j := range jobs() {
		if flag.NArg() > 0 && !slices.Contains(flag.Args(), j.name) {
			continue
		}
		dir := filepath.Join(work, strconv.Itoa(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return false, err
		}
		samples, err := j.run(ctx, dir)
		if err != nil {
			return false, fmt.Errorf("%s %s: %w", j.name, strings.Join(j.flags, " "), err)
		}
		ok = judge(j, samples) && ok
	}
	return ok, nil
}

// run runs the example in dir and returns samples of the whole run.
func (j job) run(ctx context.Context, dir string) ([]sample, error) {
	text := bytes.Repeat([]byte("the cat sat on the mat, and the dog looked on. "), 5000)
	if err := os.WriteFile(filepath.Join(dir, "text"), text, 0o600); err != nil {
		return nil, err
	}
	output, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		return nil, err
	}
	defer output.Close()
	program := filepath.Join(*bin, j.name)
	cmd := exec.CommandContext(ctx, filepath.Join(*bin, "golaunch"), slices.Concat([]string{"--nproc-per-node", strconv.Itoa(*ranks)}, j.launch, []string{program}, j.flags)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	// Run the garbage collector whenever the heap has grown by a hundredth. By default it would run
	// only twice on a large heap, and the samples between would include garbage.
	cmd.Env = append(os.Environ(), "GOGC=1")
	if j.name == "gorgonia" { // examples/gorgonia runs on the CPU alone
		cmd.Env = append(cmd.Env, "GODDP_DEVICE=cpu")
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // golaunch then ends the ranks
	cmd.WaitDelay = time.Minute
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var outside []sample // of the quantities that the example does not log
	for {
		select {
		case err := <-ended:
			lines := read(dir)
			if err == nil && len(lines) < 20 {
				err = fmt.Errorf("%d lines of steps, want at least 20", len(lines))
			}
			if err != nil {
				said, _ := os.ReadFile(output.Name())
				return nil, fmt.Errorf("%w\n%s", err, said[max(0, len(said)-4000):])
			}
			return append(lines, outside...), nil
		case <-time.After(100 * time.Millisecond):
		}
		if lines := read(dir); len(lines) > 0 {
			held := map[string]float64{}
			if bytes := resident(program); bytes > 0 {
				held["rss_bytes"] = bytes
			}
			if bytes, err := usedOnGPUs(ctx); err == nil {
				held["gpu_bytes"] = bytes
			}
			outside = append(outside, sample{lines[len(lines)-1].step, held})
		}
	}
}

// textStep matches the line of a step of an example that logs no JSON.
var textStep = regexp.MustCompile(`: step (\d+) loss`)

// read returns a sample for each line about a step in the job's log and output.
func read(dir string) (samples []sample) {
	for _, name := range []string{"run.jsonl", "output"} {
		text, _ := os.ReadFile(filepath.Join(dir, name)) // run.jsonl may not exist
		for line := range bytes.Lines(text) {
			if m := textStep.FindSubmatch(line); m != nil {
				step, _ := strconv.Atoi(string(m[1]))
				samples = append(samples, sample{step: step})
				continue
			}
			var members map[string]any
			start := max(0, bytes.IndexByte(line, '{')) // skips golaunch's prefix
			if json.Unmarshal(line[start:], &members) != nil || members["heap_bytes"] == nil {
				continue
			}
			s := sample{held: map[string]float64{}}
			for name, v := range members {
				if number, ok := v.(float64); ok && name == "step" {
					s.step = int(number)
				} else if ok {
					s.held[name] = number
				}
			}
			samples = append(samples, s)
		}
	}
	return samples
}

// resident returns the resident memory of all processes that run a program, in bytes.
func resident(program string) (bytes float64) {
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		if path, err := os.Readlink(exe); err != nil || path != program {
			continue
		}
		statm, _ := os.ReadFile(filepath.Join(filepath.Dir(exe), "statm"))
		if fields := strings.Fields(string(statm)); len(fields) > 1 {
			pages, _ := strconv.ParseFloat(fields[1], 64)
			bytes += pages * float64(os.Getpagesize())
		}
	}
	return bytes
}

// usedOnGPUs returns the memory in use on all GPUs, in bytes.
func usedOnGPUs(ctx context.Context) (bytes float64, err error) {
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits").Output()
	if err != nil {
		return 0, err
	}
	for _, field := range strings.Fields(string(out)) {
		mib, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return 0, errors.New(string(out))
		}
		bytes += mib * (1 << 20)
	}
	return bytes, nil
}

// judge prints the medians of each quantity, and reports whether nothing grew.
func judge(j job, samples []sample) (ok bool) {
	last := 0
	for _, s := range samples {
		last = max(last, s.step)
	}
	name := strings.TrimSpace(j.name + " " + model(j))
	warm := last / 10
	half := (warm + last) / 2
	ok = true
	for _, l := range limits {
		var middle, end []float64
		for _, s := range samples {
			if v, ok := s.held[l.kind]; ok && s.step > half {
				end = append(end, v)
			} else if ok && s.step > warm {
				middle = append(middle, v)
			}
		}
		if len(middle) == 0 || len(end) == 0 {
			continue // the job has no such quantity, as on a machine without GPUs
		}
		m, e := median(middle), median(end)
		verdict := ""
		if e-m > max(l.absolute, l.part*m) {
			verdict, ok = "  GROWS", false
		}
		fmt.Printf("%-12s %6d %-13s %14.0f %14.0f %+12.0f%s\n", name, last, l.kind, m, e, e-m, verdict)
	}
	return ok
}

// model returns the value of the example's flag --model, or "".
func model(j job) string {
	if i := slices.Index(j.flags, "--model"); i >= 0 {
		return j.flags[i+1]
	}
	return ""
}

func median(v []float64) float64 {
	slices.Sort(v)
	return v[len(v)/2]
}
