package parquet_test

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	format "github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	metadata "github.com/parquet-go/parquet-go/format"

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
	Price int64  `parquet:"price,decimal(2:10)"`
	Huge  uint64 `parquet:"huge"`
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
		r := row{Age: float64(i) / 2, Income: float32(i), Class: int32(i % 3), Paid: i%2 == 1, When: int64(i) << 40, Name: "x", List: []int32{1, 2}, Price: 1234, Huge: 1<<63 + 1<<40}
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
		"a decimal":  {path, parquet.Field{Columns: []string{"price"}}, []string{`"price"`, "DECIMAL(10,2)", "want integers or floating-point"}},
		"a price":    {path, parquet.Field{Columns: []string{"price"}, Integer: true}, []string{`"price"`, "DECIMAL(10,2)"}},
		"huge":       {path, parquet.Field{Columns: []string{"huge"}, Integer: true}, []string{`"huge"`, "row 0 is 9223373136366403584, want at most 9223372036854775807"}},
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

// Unsigned integers keep their values, also those that a signed integer of the same size does not hold.
func TestOpenUnsigned(t *testing.T) {
	path := filepath.Join(t.TempDir(), "unsigned.parquet")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := format.NewWriter(f, format.NewSchema("rows", format.Group{
		"a": format.Uint(8), "b": format.Uint(16), "c": format.Uint(32), "d": format.Encoded(format.Uint(32), &format.RLEDictionary),
		"e": format.Uint(64), "f": format.Uint(64),
	}))
	for _, row := range [][]uint64{{math.MaxUint8, math.MaxUint16, 3e9, math.MaxUint32, math.MaxInt64, 1 << 63}, {1, 2, 3, 4, 5, 6}} {
		var values format.Row
		for i, v := range row {
			if i < 4 {
				values = append(values, format.Int32Value(int32(v)).Level(0, 0, i))
			} else {
				values = append(values, format.Int64Value(int64(v)).Level(0, 0, i))
			}
		}
		if _, err := w.WriteRows([]format.Row{values}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	columns := []string{"a", "b", "c", "d", "e", "f"}
	set, err := parquet.Open(path, parquet.Field{Columns: columns[:5], Integer: true}, parquet.Field{Columns: columns})
	if err != nil {
		t.Fatal(err)
	}
	integers, floats := make([]int64, 10), make([]float32, 12)
	if err := set.Read([]int{0, 1}, []device.Tensor{device.HostTensor(integers, device.Invalid, 2, 5), device.HostTensor(floats, device.Invalid, 2, 6)}); err != nil {
		t.Fatal(err)
	}
	if want := []int64{math.MaxUint8, math.MaxUint16, 3e9, math.MaxUint32, math.MaxInt64, 1, 2, 3, 4, 5}; !slices.Equal(integers, want) {
		t.Errorf("integers %v, want %v", integers, want)
	}
	if want := []float32{math.MaxUint8, math.MaxUint16, 3e9, math.MaxUint32, math.MaxInt64, 1 << 63, 1, 2, 3, 4, 5, 6}; !slices.Equal(floats, want) {
		t.Errorf("floats %v, want %v", floats, want)
	}
}

// A damaged footer is an error, not a panic.
func TestOpenDamagedFooter(t *testing.T) {
	path := write(t, 1500) // two row groups, of 1000 and 500 rows
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	end := len(raw) - 8 // of the footer; its size and a magic number follow
	start := end - int(binary.LittleEndian.Uint32(raw[end:]))
	protocol := new(thrift.CompactProtocol)
	for name, c := range map[string]struct {
		damage func(m *metadata.FileMetaData)
		want   string
	}{
		"negative":         {func(m *metadata.FileMetaData) { m.NumRows = -1 }, "the footer says -1 rows, but the row groups have 1500"},
		"none":             {func(m *metadata.FileMetaData) { m.NumRows = 0 }, "the footer says 0 rows, but the row groups have 1500"},
		"many":             {func(m *metadata.FileMetaData) { m.NumRows = 1 << 62 }, "the footer says 4611686018427387904 rows, but the row groups have 1500"},
		"negative group":   {func(m *metadata.FileMetaData) { m.RowGroups[1].NumRows = -1 }, "row group 1 begins at row 1000 and has -1 rows"},
		"overflow":         {func(m *metadata.FileMetaData) { m.RowGroups[1].NumRows = math.MaxInt64 }, "has 9223372036854775807 rows, want at most 1099511627776"},
		"many, consistent": {func(m *metadata.FileMetaData) { m.RowGroups[0].NumRows, m.NumRows = 1<<39, 1<<39+500 }, "549755814388 rows of 3 columns, want at most 1099511627776 elements"},
		"too few":          {func(m *metadata.FileMetaData) { m.RowGroups[1].NumRows, m.NumRows = 400, 1400 }, `column "age": it has more than 1400 values`},
		"too many":         {func(m *metadata.FileMetaData) { m.RowGroups[1].NumRows, m.NumRows = 600, 1600 }, `column "age": it has 1500 values, want 1600`},
		"no schema":        {func(m *metadata.FileMetaData) { m.Schema[0].NumChildren = -1 }, "damaged"},
	} {
		var m metadata.FileMetaData
		if err := thrift.Unmarshal(protocol, raw[start:end], &m); err != nil {
			t.Fatal(err)
		}
		c.damage(&m)
		footer, err := thrift.Marshal(protocol, &m)
		if err != nil {
			t.Fatal(err)
		}
		file := append(slices.Clone(raw[:start]), footer...)
		file = append(binary.LittleEndian.AppendUint32(file, uint32(len(footer))), raw[end+4:]...)
		if err := os.WriteFile(path, file, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err = parquet.Open(path, parquet.Field{Columns: []string{"age", "income", "class"}})
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), filepath.Base(path)) {
			t.Errorf("%s: the error is %v, want the file and %q", name, err, c.want)
		}
	}
}
