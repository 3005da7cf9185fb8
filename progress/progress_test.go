package progress

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// clock returns a fake clock that advances by a second at each call.
func clock() func() time.Time {
	now := time.Unix(1000, 0)
	return func() time.Time {
		now = now.Add(time.Second)
		return now
	}
}

// train runs six steps of 100 samples, with a note after the fourth.
func train(t *testing.T, rank int, opts Options) (due []bool) {
	t.Helper()
	m, err := New(rank, &opts)
	if err != nil {
		t.Fatal(err)
	}
	for step := range 6 {
		is := m.Step(100)
		due = append(due, is)
		if is {
			m.Log(V("loss", 1/float64(step)), V("lr", 0.1))
		}
		if step == 3 {
			m.Note(V("accuracy", 0.5))
		}
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	return due
}

func TestLines(t *testing.T) {
	var out bytes.Buffer
	file := filepath.Join(t.TempDir(), "run.jsonl")
	runtime.GC() // because heap_bytes is 0 before the first collection
	var held int64
	train(t, 0, Options{Steps: 6, Every: 2, Out: &out, File: file, DeviceBytes: func() int64 { held += 40; return held }, now: clock()})
	want := `step 2/6  loss 1  lr 0.1  200 samples/s  2s left
step 4/6  loss 0.3333  lr 0.1  200 samples/s  1s left
step 4/6  accuracy 0.5
step 6/6  loss 0.2  lr 0.1  200 samples/s
`
	if out.String() != want {
		t.Errorf("lines\n%swant\n%s", out.String(), want)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	wantFile := `{"time":1.000,"step":2,"loss":1,"lr":0.1,"samples_per_second":200,"heap_bytes":N,"goroutines":N,"device_bytes":40}
{"time":2.000,"step":4,"loss":0.3333333333333333,"lr":0.1,"samples_per_second":200,"heap_bytes":N,"goroutines":N,"device_bytes":80}
{"time":3.000,"step":4,"accuracy":0.5}
{"time":4.000,"step":6,"loss":0.2,"lr":0.1,"samples_per_second":200,"heap_bytes":N,"goroutines":N,"device_bytes":120}
`
	process := regexp.MustCompile(`("heap_bytes"|"goroutines"):[1-9][0-9.e+]*`)
	if got := process.ReplaceAllString(string(raw), "$1:N"); got != wantFile {
		t.Errorf("the file has\n%swant\n%s", got, wantFile)
	}
}

// The bar is redrawn every 100 ms, with the numbers for which there is room. A note stays above it.
func TestBar(t *testing.T) {
	for _, c := range []struct {
		columns, steps int
		want           string
	}{
		{99, 8, `
\r 25% [===         ] 2/8  20 steps/s  0s left
\r 50% [======      ] 4/8  20 steps/s  0s left
\r 50% [======      ] 4/8  20 steps/s  0s left  loss 0.5  lr 0.1  200 samples/s
\rstep 4/8  accuracy 1                                                         \n
\r 50% [======      ] 4/8  loss 0.5  lr 0.1  200 samples/s\n`},
		{39, 4, `
\r 50% [==  ] 2/4  20 steps/s  0s left
\r100% [====] 4/4  20 steps/s         
\r100% [====] 4/4  20 steps/s  loss 0.5
\rstep 4/4  accuracy 1                 \n
\r100% [====] 4/4  loss 0.5  lr 0.1\n`},
		{9, 0, `
\rstep 2
\rstep 4
\rstep 4
\rstep 4  accuracy 1\n
\rstep 4\n`},
	} {
		now := time.Unix(0, 0)
		var out strings.Builder
		m, err := New(0, &Options{Steps: c.steps, Every: 4, Out: &out, now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		m.bar = &bar{out: &out, before: "\r", columns: c.columns, drawnAt: now}
		for range 4 {
			now = now.Add(50 * time.Millisecond)
			if m.Step(10) {
				m.Log(V("loss", 0.5), V("lr", 0.1))
			}
		}
		m.Note(V("accuracy", 1))
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		if got := strings.NewReplacer("\r", `
\r`, "\n", `\n`).Replace(out.String()); got != c.want {
			t.Errorf("%d columns: %s\nwant %s", c.columns, got, c.want)
		}
	}
}

// An evaluation does not slow the rate of the bar.
func TestRateOfBarAfterNote(t *testing.T) {
	now := time.Unix(0, 0)
	var out strings.Builder
	m, err := New(0, &Options{Every: 100, Out: &out, now: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	m.bar = &bar{out: &out, before: "\r", columns: 80, drawnAt: now}
	for step := range 4 {
		if step == 2 {
			now = now.Add(time.Minute)
			m.Note(V("accuracy", 1))
			out.Reset()
		}
		now = now.Add(100 * time.Millisecond)
		m.Step(10)
	}
	if got := out.String(); strings.Count(got, "  10 steps/s") != 2 {
		t.Errorf("the bar is %q after an evaluation, want 10 steps/s", got)
	}
}

// Ranks other than 0 write nothing, but Step reports on them too when a line is due.
func TestOtherRanksAreSilent(t *testing.T) {
	var out bytes.Buffer
	file := filepath.Join(t.TempDir(), "run.jsonl")
	due := train(t, 1, Options{Steps: 6, Every: 4, Out: &out, File: file})
	for step, want := range []bool{false, false, false, true, false, true} {
		if due[step] != want {
			t.Errorf("step %d: due %v, want %v", step+1, due[step], want)
		}
	}
	if _, err := os.Stat(file); out.Len() > 0 || err == nil {
		t.Errorf("rank 1 wrote %q, and its file: %v", out.String(), err)
	}
}

// A resumed run appends to the file and continues the number of steps. It starts on a new line, even if the last line
// of the killed run is incomplete.
func TestResume(t *testing.T) {
	var out bytes.Buffer
	file := filepath.Join(t.TempDir(), "run.jsonl")
	train(t, 0, Options{Out: &out, Every: 6, File: file})
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(`{"time":1,"st`); err != nil {
		t.Fatal(err)
	}
	f.Close()
	train(t, 0, Options{First: 6, Steps: 12, Out: &out, Every: 6, File: file})
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var steps []float64
	for line := range strings.Lines(string(raw)) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			if line != `{"time":1,"st`+"\n" {
				t.Errorf("%q: %v", line, err)
			}
			continue
		}
		steps = append(steps, v["step"].(float64))
	}
	if want := []float64{4, 6, 6, 10, 12}; !slices.Equal(steps, want) {
		t.Errorf("steps %v, want %v", steps, want)
	}
}

// An error of writing the file does not end the training. Close returns it.
func TestFileErrors(t *testing.T) {
	if _, err := New(0, &Options{File: filepath.Join(t.TempDir(), "none", "run.jsonl")}); err == nil {
		t.Error("a file in no folder was opened")
	}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(0, &Options{File: pipe}); !errors.Is(err, syscall.ENXIO) {
		t.Errorf("a pipe without a reader: %v, want %v", err, syscall.ENXIO)
	}
	m, err := New(0, &Options{File: filepath.Join(t.TempDir(), "run.jsonl"), Out: &bytes.Buffer{}})
	if err != nil {
		t.Fatal(err)
	}
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("needs /dev/full: ", err)
	}
	m.file.Close()
	m.file = jsonFile{File: full}
	m.Log(V("loss", 1))
	m.Log(V("loss", 2))
	if err := m.Close(); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("Close is %v, want that there is no space left", err)
	}
}
