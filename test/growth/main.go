// Command growth checks that training leaks nothing: it runs each example for some thousand
// steps, and compares what its processes hold in the middle of the run with what they hold
// at its end.
//
//	go run ./test/growth                     all examples, 2 ranks, 2,000 steps
//	go run ./test/growth gpt recover         these alone
//	growth -bin DIR -data DIR                 where there is no Go: with the programs in DIR
//
// Rank 0 says what its heap holds, how many goroutines it has, and what it holds of its
// device's memory (package progress; examples/gorgonia does not). The memory of all ranks'
// processes is read from /proc, and that of the GPUs from nvidia-smi, where it is there:
// other programs must not use them. The first tenth of the steps is not looked at: buffers
// and caches fill up there. Of the rest the medians of both halves are compared. The exit code
// is 1 where one grew. examples/toy is left out: it makes one step.
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
	bin   = flag.String("bin", "", "`folder` with golaunch and the examples; default: they are built")
	data  = flag.String("data", "/usr/share/datasets/fashion-mnist", "`folder` of Fashion-MNIST")
	ranks = flag.Int("ranks", 2, "ranks of each example")
	steps = flag.Int("steps", 2000, "steps of each, or some more")
)

// A job is an example with its flags. It logs JSON lines to run.jsonl in its folder, or
// prints them.
type job struct {
	name  string
	flags []string
}

func jobs() []job {
	n := strconv.Itoa(*steps)
	epochs := strconv.Itoa(1 + *steps/(60000/64 / *ranks))
	log := []string{"--log", "run.jsonl"}
	saves := append(log, "--resume", "checkpoints", "--save-every", "100")
	return []job{
		{"fashion", slices.Concat([]string{"--model", "mlp", "--data", *data, "--epochs", epochs}, saves)},
		{"fashion", slices.Concat([]string{"--model", "cnn", "--data", *data, "--epochs", epochs}, saves)},
		{"gpt", slices.Concat([]string{"--text", "text", "--layers", "2", "--embed", "64", "--context", "64", "--steps", n}, saves)},
		{"custom", slices.Concat([]string{"--steps", n}, log)},
		{"mlp", []string{"--size", "256", "--batch", "32", "--steps", n, "--json"}},
		{"recover", slices.Concat([]string{"--steps", n}, saves)},
		{"gorgonia", []string{"--hidden", "32", "--epochs", strconv.Itoa(*steps / 4)}},
	}
}

// limits are how much more of a kind the second half of a run may hold than the first: so
// much, or so large a part of it.
var limits = []struct {
	kind     string
	absolute float64
	part     float64
}{
	{"heap_bytes", 256 << 10, 0.02},
	{"goroutines", 1, 0},
	{"device_bytes", 256 << 10, 0.01}, // the arena's high-water mark, which depends on when the collector runs
	{"rss_bytes", 4 << 20, 0.02},
	{"gpu_bytes", 8 << 20, 0.01},
}

// A sample is what the processes held at a step, by kind.
type sample struct {
	step int
	held map[string]float64
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

// campaign runs the examples that the arguments name, and tells whether nothing grew.
func campaign(ctx context.Context) (ok bool, err error) {
	work, err := os.MkdirTemp("", "growth-")
	if err != nil {
		return false, err
	}
	defer os.RemoveAll(work)
	if *bin == "" {
		*bin = filepath.Join(work, "bin")
		build := exec.CommandContext(ctx, "go", "build", "-o", *bin+"/", "./cmd/golaunch",
			"./examples/fashion", "./examples/gpt", "./examples/custom", "./examples/mlp", "./examples/recover", "./examples/gorgonia")
		if out, err := build.CombinedOutput(); err != nil {
			return false, fmt.Errorf("building: %w\n%s", err, out)
		}
	}
	if *bin, err = filepath.Abs(*bin); err != nil {
		return false, err
	}
	if *bin, err = filepath.EvalSymlinks(*bin); err != nil { // as /proc names programs
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

// run runs the example in dir and returns what was held meanwhile.
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
	cmd := exec.CommandContext(ctx, filepath.Join(*bin, "golaunch"), slices.Concat([]string{"--nproc-per-node", strconv.Itoa(*ranks), program}, j.flags)...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, output, output
	// Go's collector runs whenever the heap has grown by a hundredth: else that of a large heap
	// would run only twice, and what it leaves behind would not be known in between.
	cmd.Env = append(os.Environ(), "GOGC=1")
	if j.name == "gorgonia" { // which has no GPUs
		cmd.Env = append(cmd.Env, "GODDP_DEVICE=cpu")
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // golaunch then ends the ranks
	cmd.WaitDelay = time.Minute
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var outside []sample // of what is not in the lines
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

// textStep is what an example says of a step that says nothing of what it holds.
var textStep = regexp.MustCompile(`: step (\d+) loss`)

// read reads the lines that tell of steps.
func read(dir string) (samples []sample) {
	for _, name := range []string{"run.jsonl", "output"} {
		text, _ := os.ReadFile(filepath.Join(dir, name)) // one of them is not there yet
		for line := range bytes.Lines(text) {
			if m := textStep.FindSubmatch(line); m != nil {
				step, _ := strconv.Atoi(string(m[1]))
				samples = append(samples, sample{step: step})
				continue
			}
			var members map[string]any
			start := max(0, bytes.IndexByte(line, '{')) // behind golaunch's prefix
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

// resident is the memory of all processes that run a program, as far as it is in RAM.
func resident(program string) (bytes float64) {
	links, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, link := range links {
		if path, err := os.Readlink(link); err != nil || path != program {
			continue
		}
		statm, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "statm"))
		if fields := strings.Fields(string(statm)); len(fields) > 1 {
			pages, _ := strconv.ParseFloat(fields[1], 64)
			bytes += pages * float64(os.Getpagesize())
		}
	}
	return bytes
}

// usedOnGPUs is the memory that is used on all GPUs.
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

// judge prints what was held, and tells whether nothing grew.
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
			if v, there := s.held[l.kind]; there && s.step > half {
				end = append(end, v)
			} else if there && s.step > warm {
				middle = append(middle, v)
			}
		}
		if len(middle) == 0 || len(end) == 0 {
			continue // the CPU has no GPU memory
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

// model is which of its models an example trains.
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
