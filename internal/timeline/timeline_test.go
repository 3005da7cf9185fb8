package timeline

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// writeTrace writes a trace of lines "PID CATEGORY BEGIN END NAME", with times in microseconds, and optional
// arguments as JSON behind a tab.
func writeTrace(t *testing.T, lines ...string) string {
	t.Helper()
	var events []string
	for _, line := range lines {
		line, args, _ := strings.Cut(line, "\t")
		f := strings.Fields(line)
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
	if err := os.WriteFile(path, []byte(`{"traceEvents":[`+strings.Join(events, ",")+`]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// enqueued is the arguments of work that the host enqueued at a time in microseconds.
func enqueued(at int) string { return fmt.Sprintf("\t"+`{"enqueued":1700000000%06d.000}`, at) }

func analyzeOne(t *testing.T, lines ...string) Rank {
	t.Helper()
	report, err := Analyze(writeTrace(t, lines...))
	if err != nil {
		t.Fatal(err)
	}
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
	got.Gaps, got.Kernels = nil, nil
	us := time.Microsecond
	want := Rank{Rank: 3, Activities: 7, Total: 460 * us, Compute: 215 * us, Communication: 100 * us, Exposed: 85 * us, Copies: 60 * us, Idle: 100 * us,
		HiddenPercent: 15, SpansCommunication: 110 * us, SpansHiddenPercent: 100 * 95. / 110}
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
	want := Rank{FromSpans: true, Activities: 4, Total: 400 * us, Compute: 330 * us, Communication: 140 * us, Exposed: 10 * us, Idle: 50 * us,
		HiddenPercent: 100 * 130. / 140, SpansCommunication: 140 * us, SpansHiddenPercent: 100 * 130. / 140,
		Gaps: []Gap{{At: 300 * us, Took: 50 * us, Before: "backward", After: "optimizer", Cause: "the host was in data"}}}
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

func TestSeveralRanks(t *testing.T) {
	both := writeTrace(t, "1 kernel 0 10 a", "1 kernel 30 40 b", "0 kernel 0 10 a", "0 kernel 60 70 b")
	third := writeTrace(t, "2 compute 0 10 forward")
	report, err := Analyze(third, both)
	if err != nil {
		t.Fatal(err)
	}
	text := report.String()
	for _, want := range []string{"rank 0, 0.010 ms after its first activity: 0.050 ms\n    between a and b\n  rank 1, ", "no kernels of rank 2, "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if data, err := json.Marshal(report); err != nil || !strings.Contains(string(data), `"rank":1,"from_spans":false,"activities":2,"total_ns":40000,`) {
		t.Errorf("%s, %v", data, err)
	}
	if _, err := Analyze(both, third, both); err == nil || !strings.Contains(err.Error(), "rank 0 is in ") {
		t.Errorf("a rank in two traces: %v", err)
	}
}

func TestReadFails(t *testing.T) {
	for text, want := range map[string]string{
		`[]`:                 "trace.json: json: cannot unmarshal",
		`{}{}`:               "data after the JSON object",
		`{"traceEvents":[]}`: "has no events",
		`{"traceEvents":[{"ph":"X","name":"a","dur":1}]}`:                           `event "a" has an invalid time: ts "", dur "1"`,
		`{"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":-1}]}`:                   `"a" has an invalid time: ts "1", dur "-1"`,
		`{"traceEvents":[{"ph":"X","name":"a","ts":9223372036854775.807,"dur":1}]}`: `"a" has an invalid time: ts "9223372036854775.807"`,
	} {
		path := filepath.Join(t.TempDir(), "trace.json")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Analyze(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	if _, err := Analyze("/dev/zero"); err == nil || !strings.Contains(err.Error(), "/dev/zero: invalid character") {
		t.Errorf("a device without an end: %v", err)
	}
	if _, err := Analyze(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("without a file: %v", err)
	}
}

// Activities of one name are one line. Spans are none: rank 2 has nothing else.
func TestKernels(t *testing.T) {
	report, err := Analyze(writeTrace(t, "2 compute 0 900 forward", "3 kernel 0 100 gemm", "3 compute 0 900 forward", "3 kernel 150 850 ncclDevKernel_AllReduce_Sum_f32_RING_LL",
		"3 kernel 850 950 gemm", "3 gpu_memset 960 960.5 memset"))
	if err != nil {
		t.Fatal(err)
	}
	want := `
Rank 2: its trace has no activities of a GPU.

Rank 3, all activities by name, in milliseconds:
   took         count   each  name
  0.700  77.7%      1  0.700  ncclDevKernel_AllReduce_Sum_f32_RING_LL
  0.200  22.2%      2  0.100  gemm
  0.001   0.1%      1  0.001  memset
`
	if got := report.KernelTable(); got != want {
		t.Errorf("the table is%s, want%s", got, want)
	}
}
