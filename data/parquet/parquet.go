// Package parquet reads numeric columns of Parquet files as a data set.
//
//	set, err := parquet.Open("train.parquet",
//		parquet.Field{Name: "features", Columns: []string{"age", "income"}},
//		parquet.Field{Name: "class", Columns: []string{"class"}, Integer: true},
//	)
//
// It is a separate package so that other programs do not link the Parquet and compression libraries.
package parquet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"os"
	"strings"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding"

	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/files"
)

// Field declares a field of the data set.
type Field struct {
	Name string
	// Columns are the names of columns. Dots separate the names of nested columns, and may be part of a name. An
	// ambiguous name is an error. Values are numbers, or booleans as 0 and 1. Dates and times are numbers as
	// stored in the file: days, or the column's unit. Columns of decimal fractions, text or lists are errors, and
	// so are missing values.
	Columns []string
	// Integer makes the field Int64, from integer columns. An integer that overflows Int64 is an error. Otherwise
	// the field is Float32, and floating-point numbers are rounded to it.
	Integer bool
	// Round allows integers to be rounded to Float32. Without it an integer that Float32 cannot represent
	// exactly, such as most above 16777216, is an error, because different identifiers or times would become
	// equal.
	Round bool
}

// maxElements limits the number of elements of a field over all columns. A damaged footer may hold a number with
// which make would panic or use all memory.
func maxElements(fileSize int64) int { return int(max(1<<28, 256*fileSize)) }

// table holds rows of columns in memory.
type table struct {
	fields   []data.Field
	floats   [][]float32 // for each field, row by row; nil for an integer field
	integers [][]int64
	rows     int
}

// Open reads columns of a Parquet file. An error names the file; an error about a value also names the column and
// the row, counted from 0. A sample of the data set is a row. A field with one column is a scalar; otherwise it
// has the shape [len(Columns)].
func Open(path string, fields ...Field) (data.Dataset, error) {
	file, err := files.Open(path)
	if err != nil {
		return nil, fmt.Errorf("data: %w", err)
	}
	defer file.Close()
	s, err := readTable(file, fields)
	if err != nil {
		return nil, fmt.Errorf("data: %s: %w", path, err)
	}
	return s, nil
}

func readTable(file *os.File, fields []Field) (_ *table, err error) {
	defer func() {
		// The Parquet library panics on some damaged sizes, and on decimals in byte arrays.
		if p := recover(); p != nil {
			err = fmt.Errorf("the file is damaged, or of a kind that is not supported: %v", p)
		}
	}()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if err := checkFooter(file, info.Size()); err != nil {
		return nil, err
	}
	f, err := parquet.OpenFile(file, info.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return nil, err
	}
	s := &table{fields: make([]data.Field, len(fields)), floats: make([][]float32, len(fields)), integers: make([][]int64, len(fields))}
	limit := maxElements(info.Size())
	if s.rows, err = countRows(f, limit); err != nil {
		return nil, err
	}
	for i, field := range fields {
		width := len(field.Columns)
		if width == 0 {
			return nil, fmt.Errorf("field %q has no columns", field.Name)
		}
		if s.rows > limit/width {
			return nil, fmt.Errorf("field %q has %d rows of %d columns, want at most %d elements from a file of %d bytes", field.Name, s.rows, width, limit, info.Size())
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
			err := values(f, column, field.Integer, func(row int, v parquet.Value, isUnsigned bool) (err error) {
				if field.Integer {
					s.integers[i][row*width+at], err = integer(v, isUnsigned)
				} else {
					s.floats[i][row*width+at], err = number(v, isUnsigned, field.Round)
				}
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("column %q: %w", column, err)
			}
		}
	}
	return s, nil
}

// checkFooter returns an error if the footer is larger than the file. The Parquet library allocates the footer's
// memory before it reads it.
func checkFooter(file io.ReaderAt, size int64) error {
	var end [8]byte // the footer's size, and a magic number
	if _, err := file.ReadAt(end[:], size-int64(len(end))); err != nil || string(end[4:]) != "PAR1" {
		return nil // OpenFile will report that this is not a Parquet file
	}
	if footer := int64(binary.LittleEndian.Uint32(end[:])); footer > size-12 { // 4 bytes are a magic number at the start
		return fmt.Errorf("truncated or damaged: the footer has %d bytes, but the whole file has %d", footer, size)
	}
	return nil
}

// countRows returns the number of rows, from 1 to limit. The footer may be damaged.
func countRows(f *parquet.File, limit int) (int, error) {
	rows := int64(0)
	for i, group := range f.RowGroups() {
		n := group.NumRows()
		if n < 0 || n > int64(limit)-rows {
			return 0, fmt.Errorf("row group %d starts at row %d and has %d rows, want at most %d rows in total", i, rows, n, limit)
		}
		rows += n
	}
	if rows != f.NumRows() {
		return 0, fmt.Errorf("the footer says %d rows, but the row groups have %d", f.NumRows(), rows)
	}
	if rows == 0 {
		return 0, errors.New("there are no rows")
	}
	return int(rows), nil
}

// lookup returns the unique column with a name, in which dots separate the names of nested columns.
func lookup(schema *parquet.Schema, name string) (leaf parquet.LeafColumn, err error) {
	var names []string
	var found [][]string
	for _, path := range schema.Columns() {
		names = append(names, strings.Join(path, "."))
		if names[len(names)-1] == name {
			found = append(found, path)
		}
	}
	switch len(found) {
	case 0:
		return leaf, fmt.Errorf("no such column; the columns are %q", names)
	case 1:
		leaf, _ = schema.Lookup(found[0]...) // the path is of this schema
		return leaf, nil
	}
	return leaf, fmt.Errorf("%d columns have this name, want one: %q", len(found), found)
}

// values calls visit with the values of a column, row by row. It wraps the errors of visit.
func values(f *parquet.File, column string, integers bool, visit func(row int, v parquet.Value, isUnsigned bool) error) error {
	leaf, err := lookup(f.Schema(), column)
	if err != nil {
		return err
	}
	if leaf.Node.Repeated() || leaf.MaxRepetitionLevel > 0 {
		return errors.New("it has lists of values, want one value per row")
	}
	isUnsigned, isDecimal := false, false
	if logical := leaf.Node.Type().LogicalType(); logical != nil {
		isUnsigned = logical.Integer != nil && !logical.Integer.IsSigned
		if isDecimal = logical.Decimal != nil; isDecimal && logical.Decimal.Scale != 0 {
			return fmt.Errorf("its type is %v, want integers or floating-point numbers", leaf.Node.Type())
		}
	}
	switch kind := leaf.Node.Type().Kind(); {
	case kind == parquet.Boolean, kind == parquet.Int32, kind == parquet.Int64, isDecimal:
	case kind == parquet.Float, kind == parquet.Double:
		if integers {
			return fmt.Errorf("its type is %v, want integers", leaf.Node.Type())
		}
	default:
		return fmt.Errorf("its type is %v, want numbers", leaf.Node.Type())
	}
	row, rows := 0, int(f.NumRows())
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
				levels := page.DefinitionLevels()
				n, cell := cells(page)
				for i := range int(page.NumValues()) {
					switch {
					case i < len(levels) && int(levels[i]) < leaf.MaxDefinitionLevel:
						return fmt.Errorf("row %d has no value (null), want a value in each row", row)
					case i == n:
						return fmt.Errorf("row %d: the page has %d values, but its header says %d", row, n, page.NumValues())
					case row == rows:
						return fmt.Errorf("it has more than %d values, want one per row", rows)
					}
					if err := visit(row, cell(i), isUnsigned); err != nil {
						return fmt.Errorf("row %d is %w", row, err)
					}
					row++
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

// cells returns the number of values in a page without missing values, and a function that returns value i. It does
// not use the library's page reader: that loops forever if a damaged header counts fewer values than the page has
// levels.
func cells(page parquet.Page) (n int, cell func(i int) parquet.Value) {
	data := page.Data()
	if dictionary := page.Dictionary(); dictionary != nil {
		v := data.Int32()
		return len(v), func(i int) parquet.Value { return dictionary.Index(v[i]) }
	}
	switch data.Kind() {
	case encoding.Boolean:
		v := data.Boolean()
		return 8 * len(v), func(i int) parquet.Value { return parquet.BooleanValue(v[i/8]>>(i%8)&1 == 1) }
	case encoding.Int32:
		v := data.Int32()
		return len(v), func(i int) parquet.Value { return parquet.Int32Value(v[i]) }
	case encoding.Int64:
		v := data.Int64()
		return len(v), func(i int) parquet.Value { return parquet.Int64Value(v[i]) }
	case encoding.Float:
		v := data.Float()
		return len(v), func(i int) parquet.Value { return parquet.FloatValue(v[i]) }
	case encoding.Double:
		v := data.Double()
		return len(v), func(i int) parquet.Value { return parquet.DoubleValue(v[i]) }
	case encoding.FixedLenByteArray:
		v, size := data.FixedLenByteArray()
		return len(v) / size, func(i int) parquet.Value { return parquet.FixedLenByteArrayValue(v[i*size : (i+1)*size]) }
	case encoding.ByteArray:
		v, ends := data.ByteArray()
		return len(ends) - 1, func(i int) parquet.Value { return parquet.ByteArrayValue(v[ends[i]:ends[i+1]]) }
	}
	return 0, nil
}

// integer returns an integer, a boolean or a decimal without a fraction. Files store unsigned integers as signed
// integers with the same bits.
func integer(v parquet.Value, isUnsigned bool) (int64, error) {
	switch v.Kind() {
	case parquet.Boolean:
		if v.Boolean() {
			return 1, nil
		}
		return 0, nil
	case parquet.Int32:
		if isUnsigned {
			return int64(v.Uint32()), nil
		}
		return int64(v.Int32()), nil
	case parquet.Int64:
		if isUnsigned && v.Int64() < 0 {
			return 0, fmt.Errorf("%d, want at most %d", v.Uint64(), math.MaxInt64)
		}
		return v.Int64(), nil
	}
	n := int64(0) // the bytes of a decimal are big-endian, in two's complement
	for i, b := range v.ByteArray() {
		if i == 0 && b >= 0x80 {
			n = -1
		}
		if n<<8>>8 != n {
			return 0, fmt.Errorf("a decimal of more than 64 bits, %#x", v.ByteArray())
		}
		n = n<<8 | int64(b)
	}
	return n, nil
}

// number returns any number as float32. It rounds floating-point numbers, and integers if round is set.
func number(v parquet.Value, isUnsigned, round bool) (float32, error) {
	switch v.Kind() {
	case parquet.Float:
		return v.Float(), nil
	case parquet.Double:
		x := float32(v.Double())
		if math.IsInf(float64(x), 0) && !math.IsInf(v.Double(), 0) {
			return 0, fmt.Errorf("%v, which exceeds Float32's maximum, %v", v.Double(), math.MaxFloat32)
		}
		return x, nil
	}
	if isUnsigned && v.Kind() == parquet.Int64 {
		return toFloat(v.Uint64(), round)
	}
	n, err := integer(v, isUnsigned)
	if err != nil {
		return 0, err
	}
	return toFloat(n, round)
}

// toFloat returns an integer as float32, or an error if it would have to round and round is not set.
func toFloat[T int64 | uint64](n T, round bool) (float32, error) {
	magnitude := uint64(n)
	if n < 0 {
		magnitude = -magnitude
	}
	if !round && bits.Len64(magnitude)-bits.TrailingZeros64(magnitude) > 24 {
		return 0, fmt.Errorf("%d, which Float32 rounds to %.0f: set Field.Integer, or Field.Round to allow that", n, float32(n))
	}
	return float32(n), nil
}

// Len returns the number of rows.
func (s *table) Len() int { return s.rows }

// Fields returns the fields passed to Open.
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
