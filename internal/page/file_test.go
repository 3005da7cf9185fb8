package page

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/telemetry"
)

// A run that is saved and loaded is the same, and goes on with further points.
func TestSavedRunGoesOn(t *testing.T) {
	r := NewRun(Info{ID: "id", Name: "name", Started: time.Unix(5, 0).UTC()})
	r.points = 16
	for step := range int64(100) {
		add(r, 1, &telemetry.Record{Kind: telemetry.Values, Step: step, Values: []telemetry.Value{{Name: "loss", Number: float64(step)}, {Name: "bad", Number: nan64}}})
		add(r, 1, &telemetry.Record{Kind: telemetry.Times, Step: step, Values: []telemetry.Value{{Name: "data", Number: 1}}})
	}
	r.Round(2, 3)
	r.Worker(Worker{Rank: 1, State: Running, Host: "a"})
	r.Event("text")
	r.Line(1, "line", true)
	r.End("failed", "report", []int{1})
	dir := t.TempDir()
	if err := r.Save(dir); err != nil {
		t.Fatal(err)
	}
	again := NewRun(Info{})
	if err := again.Load(dir); err != nil {
		t.Fatal(err)
	}
	for _, what := range []func(r *Run) any{
		func(r *Run) any { return r.Curves(telemetry.Values, "loss", 0, -1, 50, true) },
		func(r *Run) any { return r.Curves(telemetry.Times, workTime, 0, -1, 50, true) },
		func(r *Run) any { return r.State().Names },
		func(r *Run) any { return r.State().Parts },
		func(r *Run) any { return r.State().Failure },
		func(r *Run) any { return r.State().Ended.Unix() },
		func(r *Run) any { return len(r.Lines(1)) },
		func(r *Run) any { return len(r.State().Events) },
		func(r *Run) any { return r.State().Info },
		func(r *Run) any { return r.State().Latest[1] },
	} {
		if got, want := what(again), what(r); !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	again.GoOn()
	add(again, 1, &telemetry.Record{Kind: telemetry.Values, Step: 50, Values: []telemetry.Value{{Name: "loss", Number: 1}}})
	if s := again.State(); s.Status != Running || s.Failure != "" || s.Step != 50 {
		t.Errorf("%+v", s)
	}
	if c := again.Curves(telemetry.Values, "loss", 0, -1, 100, true); c.Steps[len(c.Steps)-1] != 50 {
		t.Errorf("steps %v", c.Steps)
	}
}

// A folder without a run, and files that are none, are errors. A file with impossible values is read without them.
func TestForeignRunFiles(t *testing.T) {
	dir := t.TempDir()
	if err := NewRun(Info{}).Load(dir); !errors.Is(err, ErrNoRun) {
		t.Error(err)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, runFile), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for text, want := range map[string]string{"{": "unexpected end", `{"Format":"other"}`: `format "other", want "goddp run 1"`} {
		write(text)
		if err := NewRun(Info{}).Load(dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	text, err := json.Marshal(&saved{
		Format: savedFormat, Points: 1 << 40, Events: make([]Event, 1000), Workers: []Worker{{Rank: -5}}, Lines: map[int][]Line{-1: {{}}, 3: make([]Line, 1000)},
		Series: []savedSeries{{Rank: -1, Buckets: make([]byte, bucketSize)}, {Rank: 1, Buckets: make([]byte, bucketSize*(mostPoints+1))}, {Rank: 2, Buckets: []byte{1}},
			{Kind: telemetry.Values, Name: "loss", Buckets: appendBucket(nil, &bucket{last: math.MaxInt64, points: 1})}},
	})
	if err != nil {
		t.Fatal(err)
	}
	write(string(text))
	r := NewRun(Info{})
	if err := r.Load(dir); err != nil || len(r.series) != 1 || len(r.Lines(3)) != maxLines || len(r.events) != maxEvents || r.points != mostPoints {
		t.Errorf("%v, %d series, %d lines, %d events, %d points", err, len(r.series), len(r.Lines(3)), len(r.events), r.points)
	}
	if c := r.Curves(telemetry.Values, "loss", 0, -1, 100, true); len(c.Steps) != 1 || c.Steps[0] != telemetry.MaxStep {
		t.Errorf("steps %v", c.Steps)
	}
}
