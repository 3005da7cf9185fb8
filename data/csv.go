package data

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/goddp/goddp/device"
)

// CSVOptions describe the columns of a CSV file.
type CSVOptions struct {
	// Target is the column to predict.
	Target string
	// Features are the columns to predict it from; nil means all others.
	Features []string
	// Classes, if not 0, declares Target as a class: a whole number from 0 to Classes-1.
	Classes int
}

// A Table is a CSV file in memory. As a [Dataset] it has the fields "features", Float32 [len(Columns)],
// and "target", Int64 for a class, else Float32 [1].
type Table struct {
	Columns []string // the names of the features
	Rows    [][]float32
	Targets []float32 // empty if the target is a class
	Labels  []int64   // the classes; empty if the target is not a class
	classes int
}

// OpenCSV reads a CSV file of numbers with a header line; the file may be compressed with gzip. An error
// about a value names its line and column.
func OpenCSV(path string, opts CSVOptions) (*Table, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.close()
	r := csv.NewReader(f.r)
	r.ReuseRecord = true
	header, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("data: %s: the header: %w", path, err)
	}
	header = slices.Clone(header)
	t := &Table{Columns: opts.Features, classes: opts.Classes}
	if t.Columns == nil {
		t.Columns = slices.DeleteFunc(slices.Clone(header), func(c string) bool { return c == opts.Target })
	}
	var at []int // the indices of the features' columns, then of the target's
	for _, name := range append(slices.Clone(t.Columns), opts.Target) {
		i := slices.Index(header, name)
		if i < 0 {
			return nil, fmt.Errorf("data: %s has no column %q; it has %q", path, name, header)
		}
		at = append(at, i)
	}
	for {
		record, err := r.Read()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, fmt.Errorf("data: %s: %w", path, err)
		}
		row := make([]float32, len(t.Columns))
		for i, column := range at {
			var v float32
			var class int64
			var err error
			switch isTarget := i == len(row); {
			case isTarget && t.classes > 0:
				class, err = parseClass(record[column], t.classes)
				t.Labels = append(t.Labels, class)
			case isTarget:
				v, err = parseNumber(record[column])
				t.Targets = append(t.Targets, v)
			default:
				row[i], err = parseNumber(record[column])
			}
			if err != nil {
				line, _ := r.FieldPos(column)
				return nil, fmt.Errorf("data: %s: line %d, column %s: %w", path, line, header[column], err)
			}
		}
		t.Rows = append(t.Rows, row)
	}
}

func parseNumber(text string) (float32, error) {
	v, err := strconv.ParseFloat(text, 32)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	return float32(v), nil
}

func parseClass(text string, classes int) (int64, error) {
	class, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		// Some programs write 2.0 or 2e+00. A float64 is exact below 1<<53.
		var v float64
		if v, err = strconv.ParseFloat(text, 64); v != math.Trunc(v) || v >= 1<<53 {
			err = strconv.ErrSyntax
		}
		class = int64(v)
	}
	if err != nil || class < 0 || class >= int64(classes) {
		return 0, fmt.Errorf("%q is not a class from 0 to %d", text, classes-1)
	}
	return class, nil
}

// Len returns the number of rows.
func (t *Table) Len() int { return len(t.Rows) }

// Fields returns the features and the target.
func (t *Table) Fields() []Field {
	target := Field{Name: "target", DType: device.Float32, Shape: device.Shape{1}}
	if t.classes > 0 {
		target = Field{Name: "target", DType: device.Int64}
	}
	return []Field{{Name: "features", DType: device.Float32, Shape: device.Shape{len(t.Columns)}}, target}
}

// Read writes rows and targets to dst.
func (t *Table) Read(indices []int, dst []device.Tensor) error {
	out := device.Elements[float32](dst[0])
	for row, i := range indices {
		copy(out[row*len(t.Columns):], t.Rows[i])
		if t.classes > 0 {
			device.Elements[int64](dst[1])[row] = t.Labels[i]
		} else {
			device.Elements[float32](dst[1])[row] = t.Targets[i]
		}
	}
	return nil
}
