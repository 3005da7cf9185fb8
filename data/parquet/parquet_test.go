package parquet_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	format "github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	metadata "github.com/parquet-go/parquet-go/format"

	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/data/parquet"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/testkit"
)

type row struct {
	Age    float64  `parquet:"age,brotli"`
	Income float32  `parquet:"income,zstd"`
	Class  int32    `parquet:"class,dict,gzip"`
	Paid   bool     `parquet:"paid"`
	When   int64    `parquet:"when,delta,snappy"`
	Name   string   `parquet:"name"`
	Some   *float32 `parquet:"some,optional"`
	List   []int32  `parquet:"list"`
	Inner  struct {
		X float32 `parquet:"x"`
	} `parquet:"inner"`
	Price int64 `parquet:"price,decimal(2:10)"`
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
		r := row{Age: float64(i) / 2, Income: float32(i), Class: int32(i % 3), Paid: i%2 == 1, When: int64(i) << 40, Name: "x", List: []int32{1, 2}, Price: 1234}
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
	damaged := func(name string, raw []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	truncated, empty, text := damaged("truncated.parquet", raw[:len(raw)-100]), damaged("empty", nil), damaged("text", []byte("a,b\n1,2\n3,4\n"))
	encrypted := damaged("encrypted", slices.Concat([]byte("PARE"), raw[4:len(raw)-4], []byte("PARE")))
	footer := damaged("footer", slices.Replace(slices.Clone(raw), len(raw)-5, len(raw)-4, 0xff)) // the highest byte of its size
	for name, c := range map[string]struct {
		path  string
		field parquet.Field
		words []string
	}{
		"no file":    {filepath.Join(t.TempDir(), "none"), parquet.Field{}, []string{"none", "no such file"}},
		"a folder":   {filepath.Dir(path), parquet.Field{}, []string{"is a directory"}},
		"empty":      {empty, parquet.Field{}, []string{"reading magic header", "EOF"}},
		"text":       {text, parquet.Field{}, []string{`invalid magic header of parquet file: "a,b\n"`}},
		"encrypted":  {encrypted, parquet.Field{}, []string{"PARE"}},
		"footer":     {footer, parquet.Field{}, []string{"the footer has 42", fmt.Sprintf("but the whole file has %d", len(raw))}},
		"truncated":  {truncated, parquet.Field{}, []string{"truncated.parquet"}},
		"no column":  {path, parquet.Field{Columns: []string{"height"}}, []string{`"height"`, `"age"`, `"inner.x"`}},
		"no columns": {path, parquet.Field{Name: "features"}, []string{`"features" has no columns`}},
		"a string":   {path, parquet.Field{Columns: []string{"name"}}, []string{`"name"`, "want numbers"}},
		"a list":     {path, parquet.Field{Columns: []string{"list"}}, []string{`"list"`, "lists of values"}},
		"fractions":  {path, parquet.Field{Columns: []string{"age"}, Integer: true}, []string{`"age"`, "want integers"}},
		"a decimal":  {path, parquet.Field{Columns: []string{"price"}}, []string{`"price"`, "DECIMAL(10,2)", "want integers or floating-point"}},
		"a price":    {path, parquet.Field{Columns: []string{"price"}, Integer: true}, []string{`"price"`, "DECIMAL(10,2)"}},
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

// writeRow writes a file of one row. A column of one value has the name and the type that nodes gives it.
func writeRow(t *testing.T, nodes format.Group, values map[string]format.Value) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "row.parquet")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	schema := format.NewSchema("rows", nodes)
	var row format.Row
	for i, column := range schema.Columns() {
		row = append(row, values[strings.Join(column, "/")].Level(0, 0, i))
	}
	w := format.NewWriter(f, schema)
	if _, err := w.WriteRows([]format.Row{row}); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// read returns the values of the first rows of a column, at most three, or the error.
func read(path, column string, integer bool) string {
	set, err := parquet.Open(path, parquet.Field{Columns: []string{column}, Integer: integer})
	if err != nil {
		return err.Error()
	}
	rows := []int{0, 1, 2}[:min(3, set.Len())]
	integers, floats := make([]int64, len(rows)), make([]float32, len(rows))
	dst, values := device.HostTensor(floats, device.Invalid, len(rows)), any(floats)
	if integer {
		dst, values = device.HostTensor(integers, device.Invalid, len(rows)), integers
	}
	if err := set.Read(rows, []device.Tensor{dst}); err != nil {
		return err.Error()
	}
	return fmt.Sprint(values)
}

// A value of each type is read exactly or is an error: Int64 takes all integers in range, and Float32 rounds only
// floating-point numbers.
func TestOpenTypes(t *testing.T) {
	bytes := func(b ...byte) format.Value { return format.FixedLenByteArrayValue(b) }
	wide := func(first byte, rest byte) format.Value { // a decimal of 16 bytes
		b := slices.Repeat([]byte{first}, 16)
		b[15] = rest
		return bytes(b...)
	}
	decimal38 := format.Decimal(0, 38, format.FixedLenByteArrayType(16))
	nodes, values := format.Group{}, map[string]format.Value{}
	cases := map[string]struct {
		node            format.Node
		value           format.Value
		integer, number string // what is read, or a part of the error
	}{
		"uint8":          {format.Uint(8), format.Int32Value(255), "[255]", "[255]"},
		"uint16":         {format.Uint(16), format.Int32Value(65535), "[65535]", "[65535]"},
		"uint32":         {format.Uint(32), format.Int32Value(-1294967296), "[3000000000]", "[3e+09]"},
		"uint32 dict":    {format.Encoded(format.Uint(32), &format.RLEDictionary), format.Int32Value(-1), "[4294967295]", "row 0 is 4294967295, which Float32 rounds to 4294967296: set Field.Integer, or Field.Round"},
		"uint64":         {format.Uint(64), format.Int64Value(math.MaxInt64), "[9223372036854775807]", "row 0 is 9223372036854775807, which Float32 rounds to 9223372036854775808"},
		"uint64 high":    {format.Uint(64), format.Int64Value(math.MinInt64), "row 0 is 9223372036854775808, want at most 9223372036854775807", "[9.223372e+18]"},
		"uint64 highest": {format.Uint(64), format.Int64Value(-1), "row 0 is 18446744073709551615, want at most", "row 0 is 18446744073709551615, which Float32 rounds to 18446744073709551616"},
		"int32":          {format.Int(32), format.Int32Value(-16777217), "[-16777217]", "row 0 is -16777217, which Float32 rounds to -16777216"},
		"int64":          {format.Int(64), format.Int64Value(1 << 24), "[16777216]", "[1.6777216e+07]"},
		"int64 low":      {format.Int(64), format.Int64Value(math.MinInt64), "[-9223372036854775808]", "[-9.223372e+18]"},
		"boolean":        {format.Leaf(format.BooleanType), format.BooleanValue(true), "[1]", "[1]"},
		"float":          {format.Leaf(format.FloatType), format.FloatValue(0.1), "its type is FLOAT, want integers", "[0.1]"},
		"double":         {format.Leaf(format.DoubleType), format.DoubleValue(16777217), "its type is DOUBLE, want integers", "[1.6777216e+07]"},
		"double NaN":     {format.Leaf(format.DoubleType), format.DoubleValue(math.NaN()), "want integers", "[NaN]"},
		"double Inf":     {format.Leaf(format.DoubleType), format.DoubleValue(math.Inf(-1)), "want integers", "[-Inf]"},
		"double high":    {format.Leaf(format.DoubleType), format.DoubleValue(1e300), "want integers", "row 0 is 1e+300, which exceeds Float32's maximum, 3.4028234663852886e+38"},
		"date":           {format.Date(), format.Int32Value(19675), "[19675]", "[19675]"},
		"time":           {format.Time(format.Millisecond), format.Int32Value(86399999), "[86399999]", "row 0 is 86399999, which Float32 rounds to 86400000"},
		"timestamp":      {format.Timestamp(format.Microsecond), format.Int64Value(1700000001000000), "[1700000001000000]", "row 0 is 1700000001000000, which Float32 rounds to 1699999998017536"},
		"decimal 9.0":    {format.Decimal(0, 9, format.Int32Type), format.Int32Value(-5), "[-5]", "[-5]"},
		"decimal 18.0":   {format.Decimal(0, 18, format.Int64Type), format.Int64Value(1<<24 + 1), "[16777217]", "which Float32 rounds"},
		"decimal 38.0":   {decimal38, wide(0, 200), "[200]", "[200]"},
		"decimal 38.0 -": {decimal38, wide(0xff, 0xfe), "[-2]", "[-2]"},
		"decimal 38.0 >": {decimal38, wide(1, 0), "row 0 is a decimal of more than 64 bits, 0x0101", "row 0 is a decimal of more than 64 bits"},
		"decimal 38.0 <": {decimal38, wide(0x80, 0), "row 0 is a decimal of more than 64 bits, 0x8080", "row 0 is a decimal of more than 64 bits"},
		"decimal 10.2":   {format.Decimal(2, 10, format.Int64Type), format.Int64Value(1234), "its type is DECIMAL(10,2)", "its type is DECIMAL(10,2), want integers or floating-point numbers"},
		"decimal 38.2":   {format.Decimal(2, 38, format.FixedLenByteArrayType(16)), wide(0, 1), "its type is DECIMAL(38,2)", "its type is DECIMAL(38,2)"},
		"bytes, float16": {format.Leaf(format.FixedLenByteArrayType(2)), bytes(0, 0x3c), "its type is FIXED_LEN_BYTE_ARRAY(2), want numbers", "its type is FIXED_LEN_BYTE_ARRAY(2), want numbers"},
		"int96":          {format.Leaf(format.Int96Type), format.Int96Value(deprecated.Int96{1}), "its type is INT96, want numbers", "its type is INT96, want numbers"},
		"string":         {format.String(), format.ByteArrayValue([]byte("1")), "its type is STRING, want numbers", "its type is STRING, want numbers"},
		"uuid":           {format.UUID(), wide(0, 1), "its type is UUID, want numbers", "its type is UUID, want numbers"},
	}
	for name, c := range cases {
		nodes[name], values[name] = c.node, c.value
	}
	path := writeRow(t, nodes, values)
	for name, c := range cases {
		for integer, want := range map[bool]string{true: c.integer, false: c.number} {
			if got := read(path, name, integer); got != want && (!strings.Contains(got, want) || !strings.Contains(got, fmt.Sprintf("row.parquet: column %q: ", name))) {
				t.Errorf("%s, Integer %t: %s, want %s", name, integer, got, want)
			}
		}
	}
}

// With Round an integer that Float32 cannot represent is rounded.
func TestOpenRound(t *testing.T) {
	path := writeRow(t, format.Group{"int": format.Int(32), "uint": format.Uint(64)}, map[string]format.Value{"int": format.Int32Value(-16777217), "uint": format.Int64Value(-1)})
	set, err := parquet.Open(path, parquet.Field{Columns: []string{"int", "uint"}, Round: true})
	if err != nil {
		t.Fatal(err)
	}
	got := make([]float32, 2)
	if err := set.Read([]int{0}, []device.Tensor{device.HostTensor(got, device.Invalid, 1, 2)}); err != nil || !slices.Equal(got, []float32{-16777216, 1 << 64}) {
		t.Errorf("%v, %v", got, err)
	}
}

// A name may contain dots. A name shared by a nested column and another is an error.
func TestOpenNames(t *testing.T) {
	leaf := format.Leaf(format.DoubleType)
	nodes := format.Group{"sepal.length": leaf, "a": format.Group{"b": leaf, "c.d": leaf}, "a.b": leaf, "x": format.Group{"y": leaf}, ".": leaf, "": leaf}
	values := map[string]format.Value{}
	for i, name := range []string{"sepal.length", "a/b", "a/c.d", "a.b", "x/y", ".", ""} {
		values[name] = format.DoubleValue(float64(i))
	}
	path := writeRow(t, nodes, values)
	for name, want := range map[string]string{
		"sepal.length": "[0]", "a.c.d": "[2]", "x.y": "[4]", ".": "[5]", "": "[6]",
		"a.b":   `column "a.b": 2 columns have this name, want one: [["a" "b"] ["a.b"]]`,
		"a":     `column "a": no such column; the columns are`,
		"sepal": `column "sepal": no such column`,
	} {
		if got := read(path, name, false); got != want && !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

// testData returns the folder of the Parquet library's test files.
func testData(t *testing.T) string {
	t.Helper()
	open := reflect.ValueOf(format.OpenFile).Pointer()
	source, _ := runtime.FuncForPC(open).FileLine(open)
	dir := filepath.Join(filepath.Dir(source), "testdata")
	testkit.Need(t, testkit.Requires("the test data of parquet-go", func() error {
		_, err := os.Stat(dir)
		return err
	}))
	return dir
}

// TestOpenTestData reads files that many programs wrote: a column of each kind that a file has, as Int64 or as Float32.
func TestOpenTestData(t *testing.T) {
	dir := testData(t)
	files, _ := filepath.Glob(filepath.Join(dir, "*.parquet")) // the pattern is well formed
	const number, integer = false, true
	for _, c := range []struct {
		file, column string
		as           bool
		want         string // the first three rows, or the end of the error
	}{
		{"alltypes_dictionary", "id", integer, "[0 1]"},
		{"alltypes_dictionary", "float_col", number, "[0 1.1]"},
		{"alltypes_dictionary", "date_string_col", number, "its type is BYTE_ARRAY, want numbers"},
		{"alltypes_dictionary", "timestamp_col", number, "its type is INT96, want numbers"},
		{"alltypes_plain", "id", integer, "[4 5 6]"},
		{"alltypes_plain", "float_col", number, "[0 1.1 0]"},
		{"alltypes_plain", "timestamp_col", number, "its type is INT96, want numbers"},
		{"alltypes_plain.snappy", "id", integer, "[6 7]"},
		{"alltypes_plain.snappy", "float_col", number, "[0 1.1]"},
		{"alltypes_plain.snappy", "timestamp_col", number, "its type is INT96, want numbers"},
		{"alltypes_tiny_pages", "id", integer, "[122 123 124]"},
		{"alltypes_tiny_pages", "float_col", number, "[2.2 3.3 4.4]"},
		{"alltypes_tiny_pages", "date_string_col", number, "its type is STRING, want numbers"},
		{"alltypes_tiny_pages", "timestamp_col", number, "its type is INT96, want numbers"},
		{"alltypes_tiny_pages_plain", "id", integer, "[122 123 124]"},
		{"alltypes_tiny_pages_plain", "float_col", number, "[2.2 3.3 4.4]"},
		{"alltypes_tiny_pages_plain", "timestamp_col", number, "its type is INT96, want numbers"},
		{"binary", "foo", number, "its type is BYTE_ARRAY, want numbers"},
		{"byte_array_decimal", "value", number, "its type is DECIMAL(4,2), want integers or floating-point numbers"},
		{"cluster_test_table_1.snappy", "timestamp_tz", number, "row 0 is 1642416249291, which Float32 rounds to 1642416308224"},
		{"cluster_test_table_1.snappy", "boolean", number, "row 2 has no value"},
		{"cluster_test_table_1.snappy", "int", integer, "[42 99 11]"},
		{"cluster_test_table_2.snappy", "number", number, "its type is DECIMAL(10,1), want integers or floating-point numbers"},
		{"cluster_test_table_2.snappy", "int", number, "row 1 has no value"},
		{"cluster_test_table_2.snappy", "byteint", number, "row 0 is 123456789, which Float32 rounds to 123456792"},
		{"covid.snappy", "DATE", integer, "[19017 19017 19017]"},
		{"covid.snappy", "POPULATION", number, "row 42 has no value"},
		{"covid.snappy", "CUMULATIVE_TOTAL_TESTS", number, "row 15 is 50664427, which Float32 rounds to 50664428"},
		{"data_index_bloom_encoding_stats", "String", number, "its type is STRING, want numbers"},
		{"datapage_v2.snappy", "a", number, "its type is STRING, want numbers"},
		{"datapage_v2.snappy", "b", integer, "[1 2 3]"},
		{"datapage_v2.snappy", "c", number, "[2 3 4]"},
		{"datapage_v2.snappy", "e.list.element", number, "it has lists of values, want one value per row"},
		{"delta_binary_packed", "bitwidth0", integer, "[6374628540732951412 6374628540732951412 6374628540732951412]"},
		{"delta_binary_packed", "bitwidth0", number, "row 0 is 6374628540732951412, which Float32 rounds to 6374628668752265216"},
		{"delta_byte_array", "c_customer_id", number, "its type is STRING, want numbers"},
		{"delta_encoding_optional_column", "c_customer_sk", integer, "[100 99 98]"},
		{"delta_encoding_optional_column", "c_current_cdemo_sk", number, "row 66 has no value"},
		{"delta_encoding_required_column", "c_customer_sk:", integer, "[105 104 103]"},
		{"delta_length_byte_array", "FRUIT", number, "its type is STRING, want numbers"},
		{"dict-page-offset-zero", "l_partkey", integer, "[1552 1552 1552]"},
		{"dms_test_table_LOAD00000001", "DMS_TIMESTAMP", number, "its type is STRING, want numbers"},
		{"dms_test_table_LOAD00000001", "id", integer, "[1 2 3]"},
		{"dms_test_table_LOAD00000001", "my_int", number, "row 0 is 1298498081, which Float32 rounds to 1298498048"},
		{"dms_test_table_LOAD00000001", "my_numeric", number, "its type is DECIMAL(15,2), want integers or floating-point numbers"},
		{"dms_test_table_LOAD00000001", "my_real", number, "[0.4246375 0.6938381 0.51278174]"},
		{"empty", "value", number, "there are no rows"},
		{"file", "kafka_partition", integer, "[2 2 2]"},
		{"file", "kafka_offset", number, "row 0 is 79294494518, which Float32 rounds to 79294496768"},
		{"fixed_length_decimal", "value", number, "its type is DECIMAL(25,2), want integers or floating-point numbers"},
		{"fixed_length_decimal_legacy", "value", number, "its type is DECIMAL(13,2), want integers or floating-point numbers"},
		{"int32_decimal", "value", number, "its type is DECIMAL(4,2), want integers or floating-point numbers"},
		{"int64_decimal", "value", number, "its type is DECIMAL(10,2), want integers or floating-point numbers"},
		{"issue206", "timestamp", integer, "[1735251109024 1735251120868 1735251135832]"},
		{"issue206", "timestamp", number, "row 0 is 1735251109024, which Float32 rounds to 1735251066880"},
		{"issue229", "TraceID", number, "its type is BYTE_ARRAY, want numbers"},
		{"issue276_4_per_page", "id", number, "its type is STRING, want numbers"},
		{"issue276_9_per_page", "id", number, "its type is STRING, want numbers"},
		{"issue368", "TraceID", number, "its type is BYTE_ARRAY, want numbers"},
		{"list_columns", "int64_list.list.item", number, "it has lists of values, want one value per row"},
		{"lz4_raw_compressed", "c0", integer, "[1593604800 1593604800 1593604801]"},
		{"lz4_raw_compressed", "c0", number, "row 0 is 1593604800, which Float32 rounds to 1593604864"},
		{"lz4_raw_compressed", "v11", number, "[42 7.7 42.125]"},
		{"lz4_raw_compressed_larger", "a", number, "its type is STRING, want numbers"},
		{"nested_lists.snappy", "a.list.element.list.element.list.element", number, "it has lists of values, want one value per row"},
		{"nested_lists.snappy", "b", integer, "[1 1 1]"},
		{"nested_maps.snappy", "a.key_value.key", number, "it has lists of values, want one value per row"},
		{"nested_maps.snappy", "b", integer, "[1 1 1]"},
		{"nested_maps.snappy", "c", number, "[1 1 1]"},
		{"nested_structs.rust", "roll_num.min", integer, "[190406409000602]"},
		{"nested_structs.rust", "roll_num.min", number, "row 0 is 190406409000602, which Float32 rounds to 190406402768896"},
		{"nonnullable.impala", "ID", integer, "[8]"},
		{"null_list", "emptylist.list.item", number, "it has lists of values, want one value per row"},
		{"nullable.impala", "id", integer, "[1 2 3]"},
		{"nullable.impala", "nested_struct.A", number, "row 1 has no value"},
		{"nulls.snappy", "b_struct.b_c_int", number, "row 0 has no value"},
		{"repeated_no_annotation", "id", number, "the footer says 0 rows, but the row groups have 6"},
		{"rle_boolean_encoding", "datatype_boolean", number, "row 2 has no value"},
		{"single_nan", "mycol", number, "row 0 has no value"},
		{"small", "kafka_partition", integer, "[1 1 1]"},
		{"small", "kafka_offset", number, "row 0 is 78033331572, which Float32 rounds to 78033330176"},
		{"trace.snappy", "kafka_partition", integer, "[0 0 0]"},
		{"trace.snappy", "kafka_offset", number, "row 0 is 70936751999, which Float32 rounds to 70936748032"},
	} {
		name := c.file + ".parquet"
		files = slices.DeleteFunc(files, func(f string) bool { return filepath.Base(f) == name })
		if got := read(filepath.Join(dir, name), c.column, c.as); got != c.want && (!strings.Contains(got, c.want) || !strings.Contains(got, name)) {
			t.Errorf("%s, column %s: %s, want %s", name, c.column, got, c.want)
		}
	}
	if len(files) > 0 {
		t.Errorf("no case reads %q", files)
	}
}

// A page header that counts fewer values than the page has levels is an error, although the library would loop forever.
func TestOpenDamagedPage(t *testing.T) {
	raw, err := os.ReadFile(filepath.Join(testData(t), "rle_boolean_encoding.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	raw[36] = 0xff // of the levels: one more row has a value
	path := filepath.Join(t.TempDir(), "levels.parquet")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := read(path, "datatype_boolean", true); !strings.Contains(got, "row 2 has no value") {
		t.Errorf("%s, want row 2 without a value", got)
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
		"negative group":   {func(m *metadata.FileMetaData) { m.RowGroups[1].NumRows = -1 }, "row group 1 starts at row 1000 and has -1 rows"},
		"overflow":         {func(m *metadata.FileMetaData) { m.RowGroups[1].NumRows = math.MaxInt64 }, "has 9223372036854775807 rows, want at most 268435456"},
		"many, consistent": {func(m *metadata.FileMetaData) { m.RowGroups[0].NumRows, m.NumRows = 1<<39, 1<<39+500 }, "has 549755813888 rows, want at most 268435456 rows in total"},
		"many values":      {func(m *metadata.FileMetaData) { m.RowGroups[0].NumRows, m.NumRows = 1<<27, 1<<27+500 }, "134218228 rows of 3 columns, want at most 268435456 elements from a file of"},
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
