package timeline

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// writeTrace writes a trace of lines "RANK CATEGORY BEGIN END NAME", with times in microseconds, and optional
// arguments as JSON behind a tab. A line "RANK on HOST" says where a rank runs.
func writeTrace(t *testing.T, lines ...string) string {
	t.Helper()
	var events []string
	isNamed := map[string]bool{}
	for _, line := range lines {
		line, args, _ := strings.Cut(line, "\t")
		f := strings.Fields(line)
		if !isNamed[f[0]] {
			isNamed[f[0]] = true
			events = append(events, fmt.Sprintf(`{"ph":"M","pid":%s,"name":"process_name","args":{"name":"rank %s"}}`, f[0], f[0]))
		}
		if f[1] == "on" {
			events = append(events, fmt.Sprintf(`{"ph":"M","pid":%s,"name":"process_labels","args":{"labels":%q}}`, f[0], f[2]))
			continue
		}
		var begin, end float64
		if _, err := fmt.Sscan(f[2]+" "+f[3], &begin, &end); err != nil {
			t.Fatal(err)
		}
		if args == "" {
			args = "{}"
		}
		// Times are since 1970, as in real traces.
		events = append(events, fmt.Sprintf(`{"ph":"X","pid":%s,"tid":1,"cat":%q,"ts":1700000000%06.f.%03.f,"dur":%.3f,"name":%q,"args":%s}`,
			f[0], f[1], begin, 0.0, end-begin, strings.Join(f[4:], " "), args))
	}
	path := filepath.Join(t.TempDir(), "trace.json")
	if err := os.WriteFile(path, []byte(`{"traceEvents":[`+strings.Join(events, ",\n")+`]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// enqueued is the arguments of work that the host enqueued at a time in microseconds.
func enqueued(at int) string { return fmt.Sprintf("\t"+`{"enqueued":1700000000%06d.000}`, at) }

func reportOf(t *testing.T, paths ...string) *Report {
	t.Helper()
	job, err := Read(paths...)
	if err != nil {
		t.Fatal(err)
	}
	return job.Report()
}

func analyzeOne(t *testing.T, lines ...string) Rank {
	t.Helper()
	report := reportOf(t, writeTrace(t, lines...))
	if len(report.Ranks) != 1 {
		t.Fatalf("%d ranks, want 1", len(report.Ranks))
	}
	return report.Ranks[0]
}

func TestTimesOfTheGPU(t *testing.T) {
	got := analyzeOne(t,
		"3 kernel 0 100 gemm", "3 kernel 50 120 relu",
		"3 kernel 110 200 ncclDevKernel_AllReduce_Sum_f32_RING_LL",
		"3 kernel 190 210 small_all_reduce_float32",
		"3 kernel 205 300 gemm",
		"3 gpu_memcpy 400 450 copy HtoD", "3 gpu_memset 440 460 memset",
		"3 compute 0 300 backward", "3 compute 200 250 wait for reductions\t"+`{"waits":true}`,
		"3 communication 105 215 AllReduce bucket 0",
		"3 host 0 1000 train",
	)
	got.Gaps = nil
	us := time.Microsecond
	want := Rank{Rank: 3, HiddenPercent: 15, Times: Times{Total: 460 * us, Compute: 215 * us, Communication: 100 * us, Exposed: 85 * us, Copies: 60 * us, Idle: 100 * us}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestTimesOfSpansWithoutAGPU(t *testing.T) {
	got := analyzeOne(t,
		"0 compute 0 100 forward", "0 compute 100 300 backward", "0 compute 280 300 wait for reductions\t"+`{"waits":true}`,
		"0 communication 150 290 AllReduce bucket 0", "0 compute 350 400 optimizer", "0 host 300 345 data",
	)
	us := time.Microsecond
	want := Rank{FromSpans: true, Steps: 1, Times: Times{Total: 400 * us, Compute: 330 * us, Communication: 140 * us, Exposed: 10 * us, Idle: 60 * us},
		HiddenPercent: 100 * 130. / 140,
		Gaps:          []Gap{{At: 290 * us, Took: 60 * us, Before: "AllReduce bucket 0", After: "optimizer", Cause: "the host was in data"}}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestCausesOfGaps(t *testing.T) {
	got := analyzeOne(t,
		"0 compute 0 1900 forward", "0 compute 0 9000 step",
		"0 kernel 400 410 a",
		"0 kernel 1010 1020 b"+enqueued(1000), // a gap of 600: the host was late by itself
		"0 kernel 2920 2930 c"+enqueued(2910), // of 1900: it was in a call
		"0 cuda_driver 1030 2900 cuMemAlloc_v2", "0 host 2000 2500 data",
		"0 kernel 3730 3740 d"+enqueued(5), // of 800: the stream waited, and so did the host
		"0 host 2930 3730 wait for reductions",
		"0 kernel 4440 4450 e"+enqueued(3760), // of 700: the stream waited for most of it
		"0 kernel 5050 5060 f",                // of 600: the host's span is all that is known
		"0 host 4460 5040 save",
		"0 kernel 5560 5570 g", // of 500: nothing is known; not among the longest
		"0 kernel 5571 5572 h", // of 1: not among the longest
	)
	if got.HostLate != 2500*time.Microsecond { // the first two gaps
		t.Errorf("the host was late for %v, want 2.5ms", got.HostLate)
	}
	type gap struct {
		took                   int
		before, after, in, why string
	}
	want := []gap{
		{1900, "b", "c", "step", "the host enqueued the next activity 1.89ms into the gap, and was in cuMemAlloc_v2 before"},
		{800, "c", "d", "step", "the stream waited: the next activity was enqueued 2.925ms before the gap"},
		{700, "d", "e", "step", "the stream waited: the next activity was enqueued 20µs into the gap"},
		{600, "a", "b", "forward", "the host enqueued the next activity 590µs into the gap"},
		{600, "e", "f", "step", "the host was in save"},
	}
	var found []gap
	for _, g := range got.Gaps {
		found = append(found, gap{int(g.Took.Microseconds()), g.Before, g.After, g.During, g.Cause})
	}
	if !slices.Equal(found, want) {
		t.Errorf("got  %+v\nwant %+v", found, want)
	}
}

// twoRanks writes the traces of two ranks that make two steps on two hosts. In each step, rank 1 computes 80 µs longer,
// so that rank 0 waits for it in the reduction. The clock of rank 1's host is 1500 µs ahead.
func twoRanks(t *testing.T) (paths []string) {
	for rank, late := range []int{0, 80} {
		lines := []string{fmt.Sprintf("%d on host%d", rank, rank), fmt.Sprintf("%d host 0 9000 train", rank)}
		for _, begin := range []int{1000, 2000} {
			add := func(category, name string, from, to int) {
				shift := begin + 1500*rank
				lines = append(lines, fmt.Sprintf("%d %s %d %d %s", rank, category, from+shift, to+shift, name))
			}
			add("compute", "forward", 0, 100+late)
			add("kernel", "gemm", 0, 100+late)
			add("compute", "backward", 100+late, 400+late)
			add("kernel", "gemm", 110+late, 400+late)
			add("communication", "AllReduce bucket 0", 300+late, 450)
			add("kernel", "ncclDevKernel_AllReduce", 300+late, 450)
			add("compute", "optimizer", 480, 500)
			add("kernel", "sgd", 480, 500)
		}
		paths = append(paths, writeTrace(t, lines...))
	}
	return paths
}

func TestTwoRanks(t *testing.T) {
	paths := twoRanks(t)
	const want = `2 ranks, 2 steps, times in milliseconds of a step on average:
           time  compute         exposed        copies         idle           communication  hidden  waiting
  rank 0  0.750    0.410  54.7%    0.050  6.7%   0.000  0.0%  0.290  38.7%            0.150   66.7%    0.080
  rank 1  0.750    0.490  65.3%    0.000  0.0%   0.000  0.0%  0.260  34.7%            0.070  100.0%    0.000
    mean  0.750    0.450  60.0%    0.025  3.3%   0.000  0.0%  0.275  36.7%            0.110   77.3%    0.040
The clock of host1 was 1.500 ms ahead of that of rank 0, by the ends of 2 collectives; the times are put right.

Rank 1 is the straggler: it was the last in 2 of 2 collectives, and each other rank waited 0.080 ms for it (10.7%).
  compute: 0.490 ms on rank 1, 0.410 ms on the others (their median).

The kernels that take the most, as a mean of a step and rank:
   took         count   each             kind  name
  0.430  57.3%      2  0.215          compute  gemm
  0.110  14.7%      1  0.110    communication  ncclDevKernel_AllReduce
  0.020   2.7%      1  0.020          compute  sgd

The longest gaps:
  rank 0, 0.500 ms after its first step began: 0.500 ms
    between sgd and gemm
    the host was in train
`
	text := reportOf(t, paths...).Text(false)
	if !strings.HasPrefix(text, want) {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	merged := filepath.Join(t.TempDir(), "merged.json")
	job, err := Read(paths[1], paths[0])
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := errors.Join(job.Merge(&out), os.WriteFile(merged, []byte(out.String()), 0o600)); err != nil {
		t.Fatal(err)
	}
	got := reportOf(t, merged)
	if got.Clocks[0].Ahead != 0 {
		t.Errorf("the merged trace is not on one clock: %v", got.Clocks)
	}
	got.Clocks = reportOf(t, paths...).Clocks
	if got.Text(true) != reportOf(t, paths...).Text(true) {
		t.Errorf("the merged trace says\n%s\nwant\n%s", got.Text(true), text)
	}
	rows, err := job.MedianStep()
	if err != nil {
		t.Fatal(err)
	}
	if comm := rows[1].Communication; len(rows) != 2 || len(rows[0].Compute) != 3 || len(comm) != 1 || comm[0].Begin != 380*time.Microsecond {
		t.Errorf("the step is %+v", rows)
	}
}

// Ranks that wait for each other in turn have no straggler.
func TestNoStraggler(t *testing.T) {
	report := reportOf(t, writeTrace(t, "0 communication 0 50 a", "1 communication 30 50 a", "0 communication 130 150 b", "1 communication 100 150 b"))
	if report.Straggler != nil || report.Mean.Waiting != 30*time.Microsecond {
		t.Errorf("the straggler is %+v, the ranks wait for %v, want none and 30µs", report.Straggler, report.Mean.Waiting)
	}
}

// A captured step has no spans within: its kernels are drawn.
func TestCapturedStep(t *testing.T) {
	job, err := Read(writeTrace(t, "0 compute 100 200 captured step", "0 compute 300 420 captured step", "0 compute 500 590 captured step",
		"0 kernel 110 120 gemm", "0 kernel 90 110 gemm", "0 kernel 115 160 ncclDevKernel_AllReduce"))
	if err != nil {
		t.Fatal(err)
	}
	rows, err := job.MedianStep()
	want := []Row{{Rank: 0,
		Compute:       []Span{{Name: "gemm", End: 10000, IsKernel: true}, {Name: "gemm", Begin: 10000, End: 20000, IsKernel: true}},
		Communication: []Span{{Name: "ncclDevKernel_AllReduce", Begin: 15000, End: 60000, IsKernel: true}}}}
	if err != nil || !reflect.DeepEqual(rows, want) {
		t.Errorf("the step is %+v (%v), want %+v", rows, err, want)
	}
	if job, err = Read(writeTrace(t, "0 kernel 0 10 gemm")); err != nil {
		t.Fatal(err)
	}
	if _, err := job.MedianStep(); err == nil || !strings.Contains(err.Error(), "the trace has no step") {
		t.Errorf("without a step: %v", err)
	}
}

func TestSeveralRanks(t *testing.T) {
	both := writeTrace(t, "1 kernel 0 10 a", "1 kernel 30 40 b", "0 kernel 0 10 a", "0 kernel 60 70 b")
	third := writeTrace(t, "2 compute 0 10 forward")
	report := reportOf(t, third, both)
	text := report.Text(false)
	for _, want := range []string{"rank 0, 0.010 ms after its first step began: 0.050 ms\n    between a and b\n  rank 1, ", "no kernels of rank 2, ",
		"The clock of " + third + " may differ"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if data, err := json.Marshal(report); err != nil || !strings.Contains(string(data), `"rank":1,"steps":0,"total_ns":40000,`) {
		t.Errorf("%s, %v", data, err)
	}
	if _, err := Read(both, third, both); err == nil || !strings.Contains(err.Error(), "rank 0 is in ") {
		t.Errorf("a rank in two traces: %v", err)
	}
}

// The first rank of a host that has collectives with rank 0 says how far the host's clock is ahead.
func TestClockOfALaterRank(t *testing.T) {
	got := reportOf(t, writeTrace(t, "0 on a", "1 on b", "2 on b", "0 communication 0 10 AllReduce", "1 communication 0 10 Send",
		"1 compute 0 10 forward", "2 communication 1500 1510 AllReduce")).Clocks
	if want := []Clock{{"b", 1500 * time.Microsecond, 1}}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// What is not a trace of ranks is refused in one line that says what it is.
func TestReadFails(t *testing.T) {
	for text, want := range map[string]string{
		``:                                 "the file is empty: want a trace",
		`{"traceEvents":[{"ph":"X","na`:    "the trace is incomplete: the file ends within the JSON object",
		`[]`:                               "want a trace that package profile has written, but an unexpected array is at byte 1",
		"\x1f\x8b\x08\x00\x00\x00\x00\x00": "want a trace, got a file that is compressed by gzip: run gunzip",
		`{}{}`:                             "data after the JSON object",
		`{"traceEvents":[]}`:               "has no events",
		`{"step":1,"loss":2}`:              "has no events",
		`{"traceEvents":[{"ph":"M","name":"process_name","pid":7,"args":{"name":"python"}},{"ph":"X","name":"aten::mm","pid":7,"tid":"7","ts":1.5,"dur":2}]}`: `the event "aten::mm" belongs to no rank: want a trace that package profile has written`,
		`{"traceEvents":[{"ph":"X","name":"PyTorch Profiler (0)","pid":"Spans","tid":"PyTorch Profiler","ts":1,"dur":1,"args":{"Op count":0}}]}`:              `the event "PyTorch Profiler (0)" belongs to no rank`,
		ofRank0 + `{"ph":"X","name":"a","dur":1}]}`:                           `event "a" has an invalid time: ts "", dur "1"`,
		ofRank0 + `{"ph":"X","name":"a","ts":1,"dur":-1}]}`:                   `"a" has an invalid time: ts "1", dur "-1"`,
		ofRank0 + `{"ph":"X","name":"a","ts":9223372036854775.807,"dur":1}]}`: `"a" has an invalid time: ts "9223372036854775.807"`,
	} {
		path := filepath.Join(t.TempDir(), "trace.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(path); err == nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	if _, err := Read("/dev/zero"); err == nil || !strings.Contains(err.Error(), "/dev/zero: want a trace: invalid character") {
		t.Errorf("a device without an end: %v", err)
	}
	if _, err := Read(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("without a file: %v", err)
	}
}

// ofRank0 begins a trace of rank 0.
const ofRank0 = `{"traceEvents":[{"ph":"M","name":"process_name","args":{"name":"rank 0"}},`

// What takes more or less time than before comes first.
func TestCompare(t *testing.T) {
	before := reportOf(t, writeTrace(t, "0 kernel 0 100 gemm", "0 kernel 100 150 ncclDevKernel_AllReduce", "0 kernel 150 160 relu", "0 kernel 170 180 sgd"))
	after := reportOf(t, writeTrace(t, "0 kernel 0 90 gemm", "0 kernel 50 150 ncclDevKernel_AllReduce", "0 kernel 150 160 fused_relu", "0 kernel 170 180 sgd"))
	want := `Before: 1 rank, no whole step; after: 1 rank, no whole step. Times in milliseconds of the whole trace, as a mean of the ranks:
  before  after  change         
   0.180  0.180  +0.000    +0.0%  time
   0.120  0.110  -0.010    -8.3%  compute
   0.050  0.060  +0.010   +20.0%  exposed communication
   0.000  0.000  +0.000           copies
   0.010  0.010  +0.000    +0.0%  idle
   0.050  0.100  +0.050  +100.0%  communication, hidden or exposed
   0.000  0.000  +0.000           of it waiting for the last rank

What has changed the most:
  before  after  change           name
   0.050  0.100  +0.050  +100.0%  ncclDevKernel_AllReduce
   0.100  0.090  -0.010   -10.0%  gemm
   0.010  0.000  -0.010  -100.0%  relu
   0.000  0.010  +0.010      new  fused_relu
   0.010  0.010  +0.000    +0.0%  sgd
`
	c, err := Compare(before, after)
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Text(false); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	steps := reportOf(t, writeTrace(t, "0 compute 0 100 forward", "0 compute 100 150 optimizer"))
	if _, err := Compare(before, steps); err == nil || !strings.Contains(err.Error(), "before: 1 rank, no whole step; after: 1 rank, 1 step: want whole steps in both or in none") {
		t.Errorf("with steps and without: %v", err)
	}
}
