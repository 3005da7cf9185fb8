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
	// are numbers, or booleans, which count as 0 and 1.
	Columns []string
	// Integer makes the field Int64, from integer columns; otherwise it is Float32.
	Integer bool
}

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

func open(path string, fields []Field) (*table, error) {
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
	s := &table{
		fields: make([]data.Field, len(fields)), floats: make([][]float32, len(fields)), integers: make([][]int64, len(fields)),
		rows: int(f.NumRows()),
	}
	for i, field := range fields {
		width := len(field.Columns)
		if width == 0 {
			return nil, fmt.Errorf("field %q has no columns", field.Name)
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

// values calls visit with the values of a column, row by row.
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
	switch kind := leaf.Node.Type().Kind(); kind {
	case parquet.Boolean, parquet.Int32, parquet.Int64:
	case parquet.Float, parquet.Double:
		if integers {
			return fmt.Errorf("its type is %v, want integers", leaf.Node.Type())
		}
	default:
		return fmt.Errorf("its type is %v, want numbers", leaf.Node.Type())
	}
	row := 0
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
	if rows := int(f.NumRows()); row != rows {
		return fmt.Errorf("it has %d values, want %d", row, rows)
	}
	return nil
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

// number returns any number as float32.
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
