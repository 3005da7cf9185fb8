package data

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	"github.com/goddp/goddp/device"
)

// CSVOptions are the choices of [OpenCSV].
type CSVOptions struct {
	// Features are the columns to predict the target from; nil means all others.
	Features []string
	// Classes, if not 0, makes the target a class: an integer from 0 to Classes-1.
	Classes int
	// Round allows integers that float32 cannot represent exactly, such as most above 16777216, to be rounded.
	// Without it they are errors, because different identifiers or times would become equal.
	Round bool
}

// table is a CSV file in memory.
type table struct {
	columns []string // the names of the features
	rows    [][]float32
	targets []float32 // empty if the target is a class
	labels  []int64   // the classes; empty if the target is not a class
	classes int
}

// OpenCSV reads a CSV file of numbers with a header line, in UTF-8 and separated by commas, optionally gzipped.
// target is the column to predict. The samples have the fields "features", Float32 [features], and "target", Int64
// for a class, else Float32 [1]. Spaces around names and numbers are ignored, and empty lines are skipped. Columns
// with the same name are separate features, but target and Features cannot name them. An error about a value names
// its line and column. Numbers with a point or an exponent are rounded to float32; see [CSVOptions.Round] for integers.
func OpenCSV(path, target string, opts *CSVOptions) (Dataset, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.close()
	t, err := readCSV(f.r, target, *cmp.Or(opts, &CSVOptions{}))
	if err != nil {
		return nil, fmt.Errorf("data: %s: %w", path, err)
	}
	return t, nil
}

func readCSV(in io.Reader, target string, opts CSVOptions) (*table, error) {
	if opts.Classes < 0 {
		return nil, fmt.Errorf("CSVOptions.Classes is %d, want 0 or more", opts.Classes)
	}
	text := bufio.NewReader(in)
	if mark, err := text.Peek(len(byteOrderMark)); err == nil && string(mark) == byteOrderMark {
		text.Discard(len(byteOrderMark)) // cannot fail after Peek
	}
	r := csv.NewReader(text)
	r.ReuseRecord, r.TrimLeadingSpace = true, true
	header, err := r.Read()
	if errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty, want a header")
	}
	if err != nil {
		return nil, fmt.Errorf("the header: %w", err)
	}
	header = slices.Clone(header)
	for i, name := range header {
		if strings.ContainsAny(name, "\x00\r") { // UTF-16 has zero bytes
			return nil, fmt.Errorf("column %d of the header is %.40q: want UTF-8, and lines that end with LF or CRLF", i+1, name)
		}
		header[i] = strings.TrimSpace(name)
	}
	at, err := columnsOf(header, target, opts)
	if err != nil {
		return nil, err
	}
	t := &table{classes: opts.Classes}
	for _, column := range at[:len(at)-1] {
		t.columns = append(t.columns, header[column])
	}
	for {
		record, err := r.Read()
		switch {
		case errors.Is(err, io.EOF) && len(t.rows) == 0:
			return nil, errors.New("no rows after the header")
		case errors.Is(err, io.EOF):
			return t, nil
		case errors.Is(err, csv.ErrFieldCount):
			line, _ := r.FieldPos(0)
			return nil, fmt.Errorf("line %d has %d columns, but the header has %d", line, len(record), len(header))
		case err != nil:
			return nil, err
		}
		row := make([]float32, len(t.columns))
		for i, column := range at {
			var v float32
			var class int64
			var err error
			text := strings.TrimSpace(record[column])
			switch isTarget := i == len(row); {
			case isTarget && t.classes > 0:
				class, err = parseClass(text, t.classes)
				t.labels = append(t.labels, class)
			case isTarget:
				v, err = parseNumber(text, opts.Round)
				t.targets = append(t.targets, v)
			default:
				row[i], err = parseNumber(text, opts.Round)
			}
			if err != nil {
				line, _ := r.FieldPos(column)
				return nil, fmt.Errorf("line %d, column %d (%q): %w", line, column+1, header[column], err)
			}
		}
		t.rows = append(t.rows, row)
	}
}

// byteOrderMark is written by Excel and other programs at the start of UTF-8 text.
const byteOrderMark = "\ufeff"

// columnsOf returns the column indices of the features, followed by that of the target.
func columnsOf(header []string, target string, opts CSVOptions) (at []int, err error) {
	find := func(name string) (int, error) {
		name = strings.TrimSpace(name)
		i := slices.Index(header, name)
		switch {
		case name == "":
			return 0, errors.New("want the name of a column, not an empty one")
		case i < 0 && len(header) == 1:
			return 0, fmt.Errorf("there is no column %q, only %.200q: want commas between columns", name, header[0])
		case i < 0:
			return 0, fmt.Errorf("there is no column %q; there are %.2000s", name, fmt.Sprintf("%q", header))
		}
		if next := slices.Index(header[i+1:], name); next >= 0 {
			return 0, fmt.Errorf("columns %d and %d are both named %q", i+1, i+next+2, name)
		}
		return i, nil
	}
	y, err := find(target)
	if err != nil {
		return nil, fmt.Errorf("target: %w", err)
	}
	for _, name := range opts.Features {
		i, err := find(name)
		if err != nil {
			return nil, fmt.Errorf("CSVOptions.Features: %w", err)
		}
		if i == y || slices.Contains(at, i) {
			return nil, fmt.Errorf("column %q is named twice in target and Features", name)
		}
		at = append(at, i)
	}
	for i := range header {
		if opts.Features == nil && i != y {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return nil, fmt.Errorf("no features besides the target %q", target)
	}
	return append(at, y), nil
}

// parseNumber parses a number as strconv.ParseFloat does, including "NaN" and "Inf". An integer that float32
// cannot represent exactly is an error unless round is set.
func parseNumber(text string, round bool) (float32, error) {
	v, err := strconv.ParseFloat(text, 32)
	if errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%q exceeds float32's maximum, %v", text, math.MaxFloat32)
	}
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", text)
	}
	if !round && math.Abs(v) >= 1<<24 {
		n, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
		magnitude := uint64(max(n, -n))
		if errors.Is(err, strconv.ErrRange) || err == nil && bits.Len64(magnitude)-bits.TrailingZeros64(magnitude) > 24 {
			return 0, fmt.Errorf("%q is an integer that float32 rounds to %.0f: set CSVOptions.Round to allow that", text, v)
		}
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
		return 0, fmt.Errorf("class %q, want an integer from 0 to %d", text, classes-1)
	}
	return class, nil
}

func (t *table) Len() int { return len(t.rows) }

func (t *table) Fields() []Field {
	target := Field{Name: "target", DType: device.Float32, Shape: device.Shape{1}}
	if t.classes > 0 {
		target = Field{Name: "target", DType: device.Int64}
	}
	return []Field{{Name: "features", DType: device.Float32, Shape: device.Shape{len(t.columns)}}, target}
}

func (t *table) Read(indices []int, dst []device.Tensor) error {
	out := device.Elements[float32](dst[0])
	for row, i := range indices {
		copy(out[row*len(t.columns):], t.rows[i])
		if t.classes > 0 {
			device.Elements[int64](dst[1])[row] = t.labels[i]
		} else {
			device.Elements[float32](dst[1])[row] = t.targets[i]
		}
	}
	return nil
}
