package stepplot

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goddp/goddp/internal/timeline"
)

// drawn draws a step of some ranks that all do the same.
func drawn(t *testing.T, ranks int, compute ...timeline.Span) string {
	t.Helper()
	var rows []timeline.Row
	for r := range ranks {
		rows = append(rows, timeline.Row{Rank: r, Compute: compute})
	}
	path := filepath.Join(t.TempDir(), "step.svg")
	if err := Save(path, rows, &timeline.Straggler{Rank: 42}); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A box has its name if there is room for it. Names are text, whatever they are. A picture has a few ranks of many, and
// the straggler.
func TestNames(t *testing.T) {
	ms := time.Millisecond
	got := drawn(t, 100, timeline.Span{Name: "<script>", End: 90 * ms}, timeline.Span{Name: "optimizer", Begin: 90 * ms, End: 91 * ms},
		timeline.Span{Name: "wait", Begin: 91 * ms, End: 100 * ms, IsWait: true})
	for text, want := range map[string]int{"<script>": 0, "&lt;script&gt;": mostRanks, ">optimizer<": 0, ">rank 6<": 1, ">rank 7<": 0, ">rank 42<": 1,
		"of 100 ranks, of which 0, 1, 2, 3, 4, 5, 6, 42 are drawn": 1, ">waits for it<": 1} {
		if n := strings.Count(got, text); n != want {
			t.Errorf("the picture has %q %d times, want %d", text, n, want)
		}
	}
}

// A step in which nothing is recorded is not drawn.
func TestWithoutSpans(t *testing.T) {
	err := Save(filepath.Join(t.TempDir(), "step.svg"), []timeline.Row{{}}, nil)
	if err == nil || err.Error() != "the step has no span to draw" {
		t.Errorf("got %v", err)
	}
}

// A captured step has thousands of kernels, of which a picture can show some hundreds.
func TestManyKernels(t *testing.T) {
	var kernels []timeline.Span
	for i := range 100_000 {
		at := time.Duration(i) * time.Microsecond
		kernels = append(kernels, timeline.Span{Name: "gemm", Begin: at, End: at + 900, IsKernel: true})
	}
	if got := drawn(t, 2, kernels...); len(got) > 10_000 {
		t.Errorf("the picture has %d bytes, want 10,000 at most", len(got))
	}
}
