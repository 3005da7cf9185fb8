package curve

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "run.jsonl")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const run = `{"time":1.5,"step":10,"loss":2}
{"time":3,"step":20,"loss":"NaN","accuracy":0.5}
{"time":4,"step":30,"loss":1,"heap_bytes":5}
{"time":5,"st`

// Read leaves out a line that is incomplete because the process was killed.
func TestRead(t *testing.T) {
	r, err := Read(write(t, run))
	if err != nil {
		t.Fatal(err)
	}
	loss := r.Series["loss"]
	if len(loss) != 3 || loss[0] != (Point{10, 1.5, 2}) || !(loss[1].Number != loss[1].Number) || loss[2] != (Point{30, 4, 1}) {
		t.Errorf("loss %v", loss)
	}
	if accuracy := r.Series["accuracy"]; len(accuracy) != 1 || accuracy[0] != (Point{20, 3, 0.5}) {
		t.Errorf("accuracy %v", accuracy)
	}
}

// An editor may have added a mark at the beginning, empty lines, and other line ends.
func TestReadEdited(t *testing.T) {
	edited, err := Read(write(t, "\ufeff"+strings.ReplaceAll(run, "\n", "\r\n \n\n")))
	if err != nil {
		t.Fatal(err)
	}
	plain, err := Read(write(t, run))
	if err != nil || fmt.Sprint(edited) != fmt.Sprint(plain) {
		t.Errorf("got %v, want %v, %v", edited, plain, err)
	}
}

// A resumed run repeats the steps since its checkpoint, and counts its time from 0. Its first line may be an
// evaluation that the failed run did not make. A new run replaces all that the file holds.
func TestReadResumed(t *testing.T) {
	first := `{"time":1,"step":10,"loss":4}
{"time":2,"step":20,"loss":3,"accuracy":0.5}
{"time":3,"step":30,"loss":9,"top5":0.5}
`
	for text, want := range map[string]map[string][]Point{
		`{"time":0.5,"step":21,"loss":2}
{"time":1,"step":30,"loss":1,"accuracy":0.75}`: {"loss": {{10, 1, 4}, {20, 2, 3}, {21, 2.5, 2}, {30, 3, 1}}, "accuracy": {{20, 2, 0.5}, {30, 3, 0.75}}},
		`{"time":0.5,"step":20,"accuracy":0.25}
{"time":1,"step":30,"loss":1}`: {"loss": {{10, 1, 4}, {20, 2, 3}, {30, 3, 1}}, "accuracy": {{20, 2.5, 0.25}}},
		`{"time":2,"step":1,"loss":7}
{"time":4,"step":10,"loss":6}`: {"loss": {{1, 2, 7}, {10, 4, 6}}},
		`{"time":0.5,"step":10,"loss":7}`: {"loss": {{10, 0.5, 7}}},
		// The first line tells where the run was resumed, which the next one alone does not.
		`{"time":0,"step":20}
{"time":1,"step":30,"loss":1}`: {"loss": {{10, 1, 4}, {20, 2, 3}, {30, 3, 1}}, "accuracy": {{20, 2, 0.5}}},
		`{"time":4,"st
{"time":0,"step":10}
{"time":5,"step":40,"loss":1}`: {"loss": {{10, 1, 4}, {40, 6, 1}}},
		`{"time":4,"step":30}
{"time":5,"step":40,"loss":1}`: {"loss": {{10, 1, 4}, {20, 2, 3}, {30, 3, 9}, {40, 5, 1}}, "accuracy": {{20, 2, 0.5}}, "top5": {{30, 3, 0.5}}},
		`{"time":0,"step":0}
{"time":5,"step":40,"loss":1}`: {"loss": {{40, 5, 1}}},
	} {
		r, err := Read(write(t, first+text))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(r.Series, want) {
			t.Errorf("got %v, want %v, of\n%s", r.Series, want, first+text)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	for want, text := range map[string]string{
		"line 2":     "{\"step\":1,\"loss\":1}\nnonsense\n{\"step\":3,\"loss\":1}\n",
		"no numbers": "",
	} {
		if _, err := Read(write(t, text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

func TestSave(t *testing.T) {
	r, err := Read(write(t, run))
	if err != nil {
		t.Fatal(err)
	}
	axes := map[string][]string{".png": {"seconds"}, ".svg": {"steps", "seconds"}}
	for _, ext := range []string{".svg", ".png", ".pdf"} {
		path := filepath.Join(t.TempDir(), "curve"+ext)
		if err := Save(path, []*Run{r, r}, Options{Axes: axes[ext], Log: ext == ".pdf"}); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil || len(raw) < 1000 {
			t.Errorf("%s has %d bytes: %v", path, len(raw), err)
		}
		if ext == ".svg" && (!strings.Contains(string(raw), "steps") || !strings.Contains(string(raw), "seconds")) {
			t.Error("the drawing does not name its axes")
		}
		if ext == ".svg" && (!strings.Contains(string(raw), "accuracy") || !strings.Contains(string(raw), "loss") || strings.Contains(string(raw), "heap_bytes")) {
			t.Error("the drawing does not name its panels, or has one for the heap")
		}
	}
	r.Series["negative"] = []Point{{Step: 1, Number: -1}}
	for want, c := range map[string]struct {
		file string
		opts Options
	}{
		`the files have no finite numbers named "los": want one of ["accuracy" "heap_bytes" "loss" "negative"]`: {"c.svg", Options{Names: []string{"los"}}},
		`no finite numbers above 0 named "negative": want one of ["accuracy" "heap_bytes" "loss"]`:              {"c.svg", Options{Names: []string{"negative"}, Log: true}},
		"c.xyz: want a name that ends with .svg, .png or .pdf":                                                  {"c.xyz", Options{}},
	} {
		if err := Save(filepath.Join(t.TempDir(), c.file), []*Run{r}, c.opts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want an error with %q", err, want)
		}
	}
}

// The panel of the loss comes first, and has that of the validation too. The epoch is not drawn. Bytes are MiB.
func TestPanels(t *testing.T) {
	point := []Point{{Step: 1, Number: 2 << 20}, {Step: 2, Number: 3 << 20}}
	r := &Run{Name: "one", Series: map[string][]Point{
		"accuracy": point, "epoch": point, "eval_loss": point, "loss": point, "lr": point, "peak_bytes": point, "samples_per_second": point, "test_accuracy": point,
	}}
	subjects, err := chosen("c.svg", []*Run{r}, Options{})
	if got, want := fmt.Sprint(subjects), "[[loss eval_loss] [accuracy test_accuracy] [peak_bytes] [lr] [samples_per_second]]"; err != nil || got != want {
		t.Errorf("the panels are %s (%v), want %s", got, err, want)
	}
	two := &Run{Name: "two", Series: r.Series}
	path := filepath.Join(t.TempDir(), "c.svg")
	for _, beside := range []bool{false, true} {
		if err := Save(path, []*Run{r, two}, Options{Names: []string{"peak_bytes", "eval_loss", "loss"}, Beside: beside}); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		panels := 1
		if beside {
			panels = 2
		}
		for text, want := range map[string]int{">peak memory (MiB)<": panels, ">loss<": panels, ">training<": 1, ">eval<": 1, ">one<": 1, ">two<": 1, ">2.2<": panels} {
			if got := strings.Count(string(raw), text); got != want {
				t.Errorf("beside each other %v: the drawing has %q %d times, want %d", beside, text, got, want)
			}
		}
	}
}

// Runs of any numbers are drawn, or there is nothing to draw. The axes of gonum's plots panic if their ranges are empty
// or overflow.
func TestSaveAnyNumbers(t *testing.T) {
	numbers := []float64{0, -1, 5e-324, 1e18, -1e308, math.MaxFloat64, math.Inf(1), math.NaN()}
	path := filepath.Join(t.TempDir(), "curve.svg")
	for _, a := range numbers {
		for _, b := range numbers {
			for _, log := range []bool{false, true} {
				r := &Run{Series: map[string][]Point{"loss": {{Step: a, Time: b, Number: a}, {Step: b, Time: b, Number: b}}}}
				err := Save(path, []*Run{r}, Options{Axes: []string{"steps", "seconds"}, Log: log})
				if err != nil && !strings.Contains(err.Error(), "no finite number") {
					t.Errorf("%v, %v: %v", a, b, err)
				}
			}
		}
	}
}
