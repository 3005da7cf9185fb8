package parquet_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	format "github.com/parquet-go/parquet-go"

	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/data/parquet"
	"github.com/goddp/goddp/device"
)

type row struct {
	Age    float64  `parquet:"age"`
	Income float32  `parquet:"income,zstd"`
	Class  int32    `parquet:"class,dict"`
	Paid   bool     `parquet:"paid"`
	When   int64    `parquet:"when,delta"`
	Name   string   `parquet:"name"`
	Some   *float32 `parquet:"some,optional"`
	List   []int32  `parquet:"list"`
	Inner  struct {
		X float32 `parquet:"x"`
	} `parquet:"inner"`
}

// write writes n rows to a file of several row groups.
func write(t *testing.T, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rows.parquet")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := format.NewGenericWriter[row](f, format.MaxRowsPerRowGroup(1000))
	for i := range n {
		r := row{Age: float64(i) / 2, Income: float32(i), Class: int32(i % 3), Paid: i%2 == 1, When: int64(i) << 40, Name: "x", List: []int32{1, 2}}
		if r.Inner.X = float32(-i); i != 5 {
			r.Some = &r.Income
		}
		if _, err := w.Write([]row{r}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestOpen(t *testing.T) {
	const n = 2500
	set, err := parquet.Open(write(t, n),
		parquet.Field{Name: "features", Columns: []string{"income", "inner.x", "age", "class"}},
		parquet.Field{Name: "class", Columns: []string{"class"}, Integer: true},
		parquet.Field{Name: "others", Columns: []string{"when", "paid"}, Integer: true})
	if err != nil {
		t.Fatal(err)
	}
	fields := set.Fields()
	var _ data.Dataset = set
	if set.Len() != n || !fields[0].Shape.Equal(device.Shape{4}) || fields[0].DType != device.Float32 ||
		len(fields[1].Shape) != 0 || fields[1].DType != device.Int64 || !fields[2].Shape.Equal(device.Shape{2}) {
		t.Fatalf("%d rows with the fields %v", set.Len(), fields)
	}
	indices := []int{2499, 0, 1001}
	features, class, others := make([]float32, 12), make([]int64, 3), make([]int64, 6)
	dst := []device.Tensor{
		device.HostTensor(features, device.Invalid, 3, 4), device.HostTensor(class, device.Invalid, 3), device.HostTensor(others, device.Invalid, 3, 2),
	}
	if err := set.Read(indices, dst); err != nil {
		t.Fatal(err)
	}
	if want := []float32{2499, -2499, 1249.5, 0, 0, 0, 0, 0, 1001, -1001, 500.5, 2}; !slices.Equal(features, want) {
		t.Errorf("features %v, want %v", features, want)
	}
	if want := []int64{0, 0, 2}; !slices.Equal(class, want) {
		t.Errorf("classes %v, want %v", class, want)
	}
	if want := []int64{2499 << 40, 1, 0, 0, 1001 << 40, 1}; !slices.Equal(others, want) {
		t.Errorf("others %v, want %v", others, want)
	}
}

// The error for a value that cannot be read is one line with the file, the column and the row.
func TestOpenRefuses(t *testing.T) {
	path := write(t, 10)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	truncated := filepath.Join(t.TempDir(), "truncated.parquet")
	if err := os.WriteFile(truncated, raw[:len(raw)-100], 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path  string
		field parquet.Field
		words []string
	}{
		"no file":    {filepath.Join(t.TempDir(), "none"), parquet.Field{}, []string{"none", "no such file"}},
		"truncated":  {truncated, parquet.Field{}, []string{"truncated.parquet"}},
		"no column":  {path, parquet.Field{Columns: []string{"height"}}, []string{`"height"`, `"age"`, `"inner.x"`}},
		"no columns": {path, parquet.Field{Name: "features"}, []string{`"features" has no columns`}},
		"text":       {path, parquet.Field{Columns: []string{"name"}}, []string{`"name"`, "want numbers"}},
		"a list":     {path, parquet.Field{Columns: []string{"list"}}, []string{`"list"`, "lists of values"}},
		"fractions":  {path, parquet.Field{Columns: []string{"age"}, Integer: true}, []string{`"age"`, "want integers"}},
		"missing":    {path, parquet.Field{Columns: []string{"some"}}, []string{`"some"`, "row 5 has no value"}},
	} {
		_, err := parquet.Open(c.path, c.field)
		for _, part := range append(c.words, filepath.Base(c.path)) {
			if err == nil || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: the error is %v, want one line with %q", name, err, part)
			}
		}
	}
}
