// Package parquet reads numeric columns of Parquet files as a data set.
//
//	set, err := parquet.Open("train.parquet",
//		parquet.Field{Name: "features", Columns: []string{"age", "income"}},
//		parquet.Field{Name: "class", Columns: []string{"class"}, Integer: true},
//	)
//
// It is a separate package so that other programs do not link the libraries of the format and of its
// compressions.
package parquet

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"

	"github.com/parquet-go/parquet-go"

	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/device"
)

// Field declares a field of the data set.
type Field struct {
	Name string
	// Columns are the columns' names; dots separate the names of nested columns. Their values
	// are numbers, or booleans, which count as 0 and 1. A column of decimal fractions is an error.
	Columns []string
	// Integer makes the field Int64, from integer columns; otherwise it is Float32. An unsigned
	// integer that does not fit into an Int64 is an error.
	Integer bool
}

// maxElements is the maximum number of elements of a field. A damaged footer may say more, and make
// would panic.
const maxElements = 1 << 40

// table holds rows of columns in memory.
type table struct {
	fields   []data.Field
	floats   [][]float32 // for each field, row by row; nil for an integer field
	integers [][]int64
	rows     int
}

// Open reads columns of a Parquet file. An error names the file; an error about a value also names the
// column and the row, counted from 0. A sample of the data set is a row. Each field is a scalar if it
// has one column, and has the shape [len(Columns)] otherwise.
func Open(path string, fields ...Field) (data.Dataset, error) {
	s, err := open(path, fields)
	if err != nil {
		return nil, fmt.Errorf("data: %s: %w", path, err)
	}
	return s, nil
}

func open(path string, fields []Field) (_ *table, err error) {
	defer func() {
		// The library of the format panics on some damaged sizes.
		if p := recover(); p != nil {
			err = fmt.Errorf("the file is damaged: %v", p)
		}
	}()
	file, err := os.Open(path)
	if err != nil {
		return nil, errors.Unwrap(err) // the message contains the path already
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	f, err := parquet.OpenFile(file, info.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return nil, err
	}
	s := &table{fields: make([]data.Field, len(fields)), floats: make([][]float32, len(fields)), integers: make([][]int64, len(fields))}
	if s.rows, err = countRows(f); err != nil {
		return nil, err
	}
	for i, field := range fields {
		width := len(field.Columns)
		if width == 0 {
			return nil, fmt.Errorf("field %q has no columns", field.Name)
		}
		if s.rows > maxElements/width {
			return nil, fmt.Errorf("field %q has %d rows of %d columns, want at most %d elements", field.Name, s.rows, width, maxElements)
		}
		s.fields[i] = data.Field{Name: field.Name, DType: device.Float32}
		if width > 1 {
			s.fields[i].Shape = device.Shape{width}
		}
		if field.Integer {
			s.fields[i].DType = device.Int64
			s.integers[i] = make([]int64, s.rows*width)
		} else {
			s.floats[i] = make([]float32, s.rows*width)
		}
		for at, column := range field.Columns {
			err := values(f, column, field.Integer, func(row int, v parquet.Value) {
				if field.Integer {
					s.integers[i][row*width+at] = integer(v)
				} else {
					s.floats[i][row*width+at] = float32(number(v))
				}
			})
			if err != nil {
				return nil, fmt.Errorf("column %q: %w", column, err)
			}
		}
	}
	return s, nil
}

// countRows returns the number of rows. The footer may be damaged.
func countRows(f *parquet.File) (int, error) {
	rows := int64(0)
	for i, group := range f.RowGroups() {
		n := group.NumRows()
		if n < 0 || n > maxElements-rows {
			return 0, fmt.Errorf("row group %d begins at row %d and has %d rows, want at most %d rows in all", i, rows, n, maxElements)
		}
		rows += n
	}
	if rows != f.NumRows() {
		return 0, fmt.Errorf("the footer says %d rows, but the row groups have %d", f.NumRows(), rows)
	}
	return int(rows), nil
}

// values calls visit with the values of a column, row by row. Unsigned values come in a type that holds them.
func values(f *parquet.File, column string, integers bool, visit func(row int, v parquet.Value)) error {
	leaf, ok := f.Schema().Lookup(strings.Split(column, ".")...)
	if !ok {
		var names []string
		for _, path := range f.Schema().Columns() {
			names = append(names, strings.Join(path, "."))
		}
		return fmt.Errorf("there is none; the columns are %q", names)
	}
	if leaf.Node.Repeated() || leaf.MaxRepetitionLevel > 0 {
		return errors.New("it has lists of values, not one for each row")
	}
	isUnsigned := false
	if logical := leaf.Node.Type().LogicalType(); logical != nil {
		if logical.Decimal != nil {
			return fmt.Errorf("its type is %v, want integers or floating-point numbers", leaf.Node.Type())
		}
		isUnsigned = logical.Integer != nil && !logical.Integer.IsSigned
	}
	switch leaf.Node.Type().Kind() {
	case parquet.Boolean, parquet.Int32, parquet.Int64:
	case parquet.Float, parquet.Double:
		if integers {
			return fmt.Errorf("its type is %v, want integers", leaf.Node.Type())
		}
	default:
		return fmt.Errorf("its type is %v, want numbers", leaf.Node.Type())
	}
	row, rows := 0, int(f.NumRows())
	buffer := make([]parquet.Value, 1024)
	for _, group := range f.RowGroups() {
		pages := group.ColumnChunks()[leaf.ColumnIndex].Pages()
		err := func() (err error) {
			defer func() { err = errors.Join(err, pages.Close()) }()
			for {
				page, err := pages.ReadPage()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return fmt.Errorf("row %d: %w", row, err)
				}
				for reader := page.Values(); ; {
					n, err := reader.ReadValues(buffer)
					for _, v := range buffer[:n] {
						if v.IsNull() {
							return fmt.Errorf("row %d has no value", row)
						}
						if row == rows {
							return fmt.Errorf("it has more than %d values, want one for each row", rows)
						}
						if isUnsigned {
							var err error
							if v, err = widen(v, integers); err != nil {
								return fmt.Errorf("row %d is %w", row, err)
							}
						}
						visit(row, v)
						row++
					}
					if errors.Is(err, io.EOF) {
						break
					}
					if err != nil {
						return fmt.Errorf("row %d: %w", row, err)
					}
				}
				parquet.Release(page)
			}
		}()
		if err != nil {
			return err
		}
	}
	if row != rows {
		return fmt.Errorf("it has %d values, want %d", row, rows)
	}
	return nil
}

// widen returns an unsigned value in a type that holds it. The file stores a signed value of the same
// bits.
func widen(v parquet.Value, integers bool) (parquet.Value, error) {
	if v.Kind() == parquet.Int32 {
		return parquet.Int64Value(int64(v.Uint32())), nil
	}
	n := v.Uint64()
	switch {
	case n <= math.MaxInt64:
		return v, nil
	case integers:
		return v, fmt.Errorf("%d, want at most %d", n, math.MaxInt64)
	}
	return parquet.DoubleValue(float64(n)), nil
}

// integer returns an integer or a boolean as int64.
func integer(v parquet.Value) int64 {
	switch v.Kind() {
	case parquet.Boolean:
		if v.Boolean() {
			return 1
		}
		return 0
	case parquet.Int32:
		return int64(v.Int32())
	}
	return v.Int64()
}

// number returns any number as float64.
func number(v parquet.Value) float64 {
	switch v.Kind() {
	case parquet.Float:
		return float64(v.Float())
	case parquet.Double:
		return v.Double()
	}
	return float64(integer(v))
}

// Len returns the number of rows.
func (s *table) Len() int { return s.rows }

// Fields returns the fields that Open was given.
func (s *table) Fields() []data.Field { return s.fields }

// Read writes rows to dst.
func (s *table) Read(indices []int, dst []device.Tensor) error {
	for f := range s.fields {
		width := s.fields[f].Shape.Len()
		for to, row := range indices {
			if s.integers[f] != nil {
				copy(device.Elements[int64](dst[f])[to*width:], s.integers[f][row*width:(row+1)*width])
			} else {
				copy(device.Elements[float32](dst[f])[to*width:], s.floats[f][row*width:(row+1)*width])
			}
		}
	}
	return nil
}
