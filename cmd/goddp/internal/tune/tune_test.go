package tune

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// fakeRuns returns a Measure whose default takes 100 us at each of three sizes. times has the settings' times; a setting
// without times fails. log takes the settings in the order of their runs.
func fakeRuns(times map[string][3]float64, log *[]string) Measure {
	runs := 0
	return func(_ context.Context, s Setting) ([]float64, error) {
		name := strings.Join(s.Variables, " ")
		*log = append(*log, name)
		if name == "" {
			runs++
			noise := float64(runs % 3) // the default differs from itself by up to 2%
			return []float64{100 + noise, 100 + noise, 100 + noise}, nil
		}
		t, ok := times[name]
		if !ok {
			return nil, errors.New("no such protocol")
		}
		return t[:], nil
	}
}

func settings(texts ...string) (all []Setting) {
	for _, text := range texts {
		s, err := Parse(text)
		if err != nil {
			panic(err)
		}
		all = append(all, s)
	}
	return all
}

func TestVerdicts(t *testing.T) {
	var log []string
	r, err := Run(t.Context(), settings("P=near", "P=fast", "P=mixed", "P=slow"), 3, fakeRuns(map[string][3]float64{
		"P=near": {97, 100, 104}, "P=fast": {80, 100, 101}, "P=mixed": {70, 100, 150}, "P=slow": {120, 130, 140},
	}, &log))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][3]Verdict{
		"default again": {Same, Same, Same}, "P=near": {Same, Same, Same}, "P=fast": {Faster, Same, Same},
		"P=mixed": {Faster, Same, Slower}, "P=slow": {Slower, Slower, Slower},
	}
	for _, c := range r.Comparisons {
		for i, q := range c.Ratios {
			if q.Verdict != want[c.String()][i] || q.Least > q.Median || q.Median > q.Most {
				t.Errorf("%v at size %d: %+v, want %v", c, i, q, want[c.String()][i])
			}
		}
	}
	report := Report{Collective: "all_reduce", Ranks: 2, Sizes: []int{1 << 10, 1 << 20, 1 << 30}, Result: r}
	if set := report.ToSet(); len(set) != 1 || set[0].String() != "P=fast" {
		t.Errorf("to set: %v", set)
	}
	var text bytes.Buffer
	if err := report.WriteText(&text); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"\nP=mixed is faster at 1K and slower at 1G: leave the default", "\nP=fast is faster at 1K, and slower at no size."} {
		if !strings.Contains(text.String(), part) {
			t.Errorf("no %q in\n%s", part, &text)
		}
	}
	report.Ranks = 1
	if set := report.ToSet(); len(set) != 0 {
		t.Errorf("to set after copies: %v", set)
	}
}

// One pair in which a setting is as slow as the default is enough for it to stay unset.
func TestOneSlowPairIsNoise(t *testing.T) {
	runs := 0
	r, err := Run(t.Context(), settings("P=lucky"), 5, func(_ context.Context, s Setting) ([]float64, error) {
		if len(s.Variables) == 0 {
			return []float64{100}, nil
		}
		if runs++; runs == 3 {
			return []float64{101}, nil
		}
		return []float64{80}, nil
	})
	if err != nil || r.Comparisons[1].Ratios[0] != (Ratio{0.8, 0.8, 1.01, Same}) {
		t.Errorf("%+v, %v", r, err)
	}
}

// A setting is not slower because the default happened to be faster than itself in each pair.
func TestNoiseIsSymmetric(t *testing.T) {
	itself := noise(Ratio{Median: 0.8, Least: 0.5, Most: 0.9})
	if itself != 2 {
		t.Errorf("the noise is %v, want 2", itself)
	}
	for q, want := range map[Ratio]Verdict{
		{Median: 1.3, Least: 1.2, Most: 1.4}: Same, {Median: 2.3, Least: 2.1, Most: 2.4}: Slower,
		{Median: 0.6, Least: 0.5, Most: 0.7}: Same, {Median: 0.4, Least: 0.3, Most: 0.49}: Faster,
	} {
		if got := judge(q, itself); got != want {
			t.Errorf("%+v is %v, want %v", q, got, want)
		}
	}
}

// The order of the runs alternates within the pairs, and a setting that fails once is not run again.
func TestOrderOfRuns(t *testing.T) {
	var log []string
	r, err := Run(t.Context(), settings("P=good", "P=bad"), 2, fakeRuns(map[string][3]float64{"P=good": {1, 2, 3}}, &log))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"", "", "", "P=good", "", "P=bad", "", "", "P=good", ""}
	if !slices.Equal(log, want) {
		t.Errorf("runs %q, want %q", log, want)
	}
	if c := r.Comparisons[2]; c.Error != "no such protocol" || c.Ratios != nil {
		t.Errorf("%+v", c)
	}
	if r.Default[0] < 100 || r.Default[0] > 102 {
		t.Errorf("the default takes %v", r.Default)
	}
}

func TestRunFailsWithTheDefault(t *testing.T) {
	broken := errors.New("no GPU")
	_, err := Run(t.Context(), nil, 1, func(context.Context, Setting) ([]float64, error) { return nil, broken })
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err = Run(ctx, settings("P=good"), 2, func(_ context.Context, s Setting) ([]float64, error) {
		if s.Variables != nil {
			cancel()
			return nil, ctx.Err()
		}
		return []float64{1}, nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

func TestJSON(t *testing.T) {
	var log []string
	r, err := Run(t.Context(), settings("P=fast", "P=bad"), 1, fakeRuns(map[string][3]float64{"P=fast": {50, 50, 50}}, &log))
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	report := Report{Collective: "all_reduce", Ranks: 2, Backend: "nccl", Pairs: 1, Sizes: []int{1, 2, 3}, Result: r}
	if err := report.WriteJSON(&text); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Sizes       []int
		DefaultUs   []float64 `json:"default_us"`
		Comparisons []struct {
			Setting []string
			Ratios  []Ratio
			Error   string
		}
		ToSet [][]string `json:"to_set"`
	}
	if err := json.Unmarshal(text.Bytes(), &got); err != nil {
		t.Fatalf("%v in %s", err, &text)
	}
	if len(got.Comparisons) != 3 || got.Comparisons[1].Ratios[2].Verdict != Faster || got.Comparisons[2].Error == "" || fmt.Sprint(got.ToSet) != "[[P=fast]]" {
		t.Errorf("got %+v", got)
	}
}

func TestParse(t *testing.T) {
	if s, err := Parse(" NCCL_ALGO=Ring,Tree  NCCL_PROTO=LL"); err != nil || !slices.Equal(s.Variables, []string{"NCCL_ALGO=Ring,Tree", "NCCL_PROTO=LL"}) {
		t.Errorf("%v, %v", s, err)
	}
	for _, text := range []string{"", " ", "NCCL_ALGO", "=Tree", "A=1 B"} {
		if s, err := Parse(text); err == nil {
			t.Errorf("%q is %v", text, s)
		}
	}
}
