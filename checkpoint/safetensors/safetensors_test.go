package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goddp/goddp/device"
)

// file returns a file with the given header and number of bytes of elements.
func file(header string, elements int) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), make([]byte, elements)...)
}

// examples returns tensors of every type that devices have, a scalar and empty tensors.
func examples() map[string]Source {
	out := map[string]Source{
		"scalar":         Bytes(device.Float32, nil, []byte{0, 0, 128, 63}),
		"empty":          Bytes(device.Float32, device.Shape{2, 0, 3}, nil),
		"layers.0.ω \"q": Bytes(device.Uint8, device.Shape{1}, []byte{9}),
	}
	for dt := range names {
		data := make([]byte, 6*dt.Size())
		for i := range data {
			data[i] = byte(i + int(dt))
		}
		out[dt.String()] = Bytes(dt, device.Shape{2, 3}, data)
	}
	return out
}

func TestRoundTrip(t *testing.T) {
	var out bytes.Buffer
	tensors, metadata := examples(), map[string]string{"format": "pt", "step": "7"}
	if err := Write(&out, tensors, metadata); err != nil {
		t.Fatal(err)
	}
	var again bytes.Buffer
	if err := Write(&again, tensors, metadata); err != nil || !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Errorf("the same tensors made other bytes: %v", err)
	}
	f, err := NewFile(bytes.NewReader(out.Bytes()), int64(out.Len()))
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(f.Metadata(), metadata) {
		t.Errorf("metadata %v, want %v", f.Metadata(), metadata)
	}
	if got, want := slices.Sorted(maps.Keys(f.Tensors())), slices.Sorted(maps.Keys(tensors)); !slices.Equal(got, want) {
		t.Errorf("tensors %q, want %q", got, want)
	}
	for name, want := range tensors {
		got := f.Tensors()[name]
		var elements bytes.Buffer
		if err := want.Write(&elements); err != nil {
			t.Fatal(err)
		}
		data, err := f.Read(name)
		if err != nil || !bytes.Equal(data, elements.Bytes()) {
			t.Errorf("%s: %v, want %v: %v", name, data, elements.Bytes(), err)
		}
		if got.DType.Device() != want.DType || !slices.Equal(got.Shape, want.Shape) {
			t.Errorf("%s: %v %v, want %v %v", name, got.DType, got.Shape, want.DType, want.Shape)
		}
		if size := want.DType.Size(); got.From%int64(size) != 0 {
			t.Errorf("%s begins at byte %d, which is not aligned to its %d bytes", name, got.From, size)
		}
	}
	if _, err := f.Read("none"); err == nil {
		t.Error("a tensor that is not there was read")
	}
}

// Each form of a file gives the tensors that it lists, to the bit, or an error that names the path and what is
// wrong.
func TestForms(t *testing.T) {
	one := `{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}`
	entry := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"a":{"dtype":%q,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
	}
	for name, c := range map[string]struct {
		file []byte
		want string // the tensors, or what the error contains
	}{
		"no tensors":                   {file(`{}`, 0), ""},
		"metadata alone":               {file(`{"__metadata__":{"ω":"1"}}`, 0), ""},
		"scalar":                       {file(entry("F32", "[]", "[0,4]"), 4), "a F32[] 00000000;"},
		"no elements":                  {file(entry("F32", "[0]", "[0,0]"), 0), "a F32[0] ;"},
		"a size of 0":                  {file(entry("F32", "[4,0,3]", "[0,0]"), 0), "a F32[4 0 3] ;"},
		"no elements at another":       {file(one+`,"0":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"z":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}}`, 8), "0 U8[0] ;a F32[2] 0000000000000000;z U8[0] ;"},
		"padded by spaces":             {file(one+"}     ", 8), "a F32[2] 0000000000000000;"},
		"spaces within":                {file(`{ "a" : {"dtype": "U8", "shape": [ ], "data_offsets": [0, 1]}}`, 1), "a U8[] 00;"},
		"in another order":             {append(file(`{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 0), 7, 8), "a U8[1] 07;b U8[1] 08;"},
		"not aligned":                  {append(file(`{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"b":{"dtype":"U16","shape":[],"data_offsets":[1,3]}}`, 0), 1, 2, 3), "a U8[] 01;b U16[] 0203;"},
		"names":                        {file(`{"":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"\u03c9/\"":{"dtype":"U8","shape":[],"data_offsets":[1,2]}}`, 2), ` U8[] 00;ω/" U8[] 00;`},
		"a field of a later version":   {file(`{"a":{"dtype":"U8","order":[1,{}],"shape":[],"data_offsets":[0,1]}}`, 1), "a U8[] 00;"},
		"a NaN with a payload":         {append(file(entry("F32", "[1]", "[0,4]"), 0), 1, 2, 0xa0, 0xff), "a F32[1] 0102a0ff;"},
		"BOOL":                         {append(file(entry("BOOL", "[2]", "[0,2]"), 0), 1, 0), "a BOOL[2] 0100;"},
		"F8_E4M3":                      {append(file(entry("F8_E4M3", "[1]", "[0,1]"), 0), 0x7f), "a F8_E4M3[1] 7f;"},
		"F8_E5M2FNUZ":                  {append(file(entry("F8_E5M2FNUZ", "[1]", "[0,1]"), 0), 0x80), "a F8_E5M2FNUZ[1] 80;"},
		"F4":                           {append(file(entry("F4", "[2,2]", "[0,2]"), 0), 0x12, 0x34), "a F4[2 2] 1234;"},
		"C64":                          {file(entry("C64", "[1]", "[0,8]"), 8), "a C64[1] 0000000000000000;"},
		"empty":                        {nil, "0 bytes, but the header's length alone takes 8"},
		"short length":                 {[]byte{1, 0, 0}, "3 bytes, but the header's length alone takes 8"},
		"a header of length 0":         {make([]byte, 8), "begin with '{'"},
		"huge header":                  {binary.LittleEndian.AppendUint64(nil, 1<<40), "the header's length is 1099511627776 bytes, want at most 100000000"},
		"negative header":              {binary.LittleEndian.AppendUint64(nil, 1<<63), "the header's length is 9223372036854775808 bytes"},
		"truncated header":             {file(one, 0)[:20], "truncated: the header has 53 bytes, but the whole file has 20"},
		"a pointer of git-lfs":         {[]byte("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 8\n"), "git-lfs pointer in place of the file: run git lfs pull"},
		"HTML":                         {[]byte("\n<!DOCTYPE HTML><html lang=\"en\">"), "it is an HTML page"},
		"an index":                     {[]byte(`{"metadata": {"total_size": 8}, "weight_map": {}}`), "want a safetensors file, but it is JSON"},
		"torch.save":                   {[]byte("PK\x03\x04\x00\x00\x08\x08\x00\x00"), "it is a zip archive"},
		"no object":                    {file(`[1]`, 0), "begin with '{'"},
		"a space first":                {file(" "+one+"}", 8), "begin with '{'"},
		"a byte order mark":            {file("\ufeff"+one+"}", 8), "begin with '{'"},
		"broken JSON":                  {file(one, 8), "EOF"},
		"more JSON":                    {file(one+"}{}", 8), "after the JSON object"},
		"garbage far away":             {file("{}"+strings.Repeat(" ", 5000)+"x", 0), "after the JSON object"},
		"no UTF-8":                     {file("{\"\xff\":{}}", 0), "not UTF-8"},
		"twice":                        {file(one+`,"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}`, 16), `"a" occurs twice`},
		"twice, by an escape":          {file(one+`,"\u0061":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}`, 16), `"a" occurs twice`},
		"a field twice":                {file(`{"a":{"dtype":"U8","shape":[1],"shape":[2],"data_offsets":[0,2]}}`, 2), `"a": the key "shape" occurs twice`},
		"metadata twice":               {file(`{"__metadata__":{},"__metadata__":{}}`, 0), "occurs twice"},
		"metadata that is a number":    {file(`{"__metadata__":{"a":1}}`, 0), "__metadata__"},
		"metadata that is null":        {file(`{"__metadata__":{"a":null}}`, 0), `"__metadata__": "a": null, want a string`},
		"overlap":                      {file(one+`,"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}}`, 12), `"b" begins at byte 4 of the data, but the tensors before it end at byte 8`},
		"the same elements":            {file(one+`,"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8), `"b" begins at byte 0`},
		"hole":                         {file(one+`,"b":{"dtype":"U8","shape":[1],"data_offsets":[9,10]}}`, 10), `"b" begins at byte 9`},
		"hole at the start":            {file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2), `"a" begins at byte 1`},
		"truncated":                    {file(one+"}", 7), `truncated: tensor "a" ends at byte 8`},
		"more elements":                {file(one+"}", 9), "9 bytes of data, but the tensors end at byte 8"},
		"wrong size":                   {file(`{"a":{"dtype":"F64","shape":[2],"data_offsets":[0,8]}}`, 8), "data_offsets are 0 to 8"},
		"backwards":                    {file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}`, 8), "data_offsets are 1 to 0"},
		"before the start":             {file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}}`, 8), "data_offsets are -1 to 0"},
		"offsets of 2^60":              {file(entry("U8", "[1152921504606846976]", "[0,1152921504606846976]"), 8), `truncated: tensor "a" ends at byte 1152921504606846976`},
		"offsets of 2^63":              {file(entry("U8", "[8]", "[0,9223372036854775808]"), 8), "data_offsets"},
		"an offset that is a fraction": {file(entry("U8", "[8]", "[0,8.0]"), 8), "data_offsets"},
		"an offset that is text":       {file(entry("U8", "[8]", `["0",8]`), 8), "data_offsets"},
		"an offset that is null":       {file(entry("U8", "[8]", `[null,8]`), 8), "it lacks"},
		"negative shape":               {file(entry("U8", "[-1]", "[0,8]"), 8), "shape [-1], want sizes of at least 0"},
		"two negative sizes":           {file(entry("U8", "[-2,-4]", "[0,8]"), 8), "shape [-2 -4]"},
		"overflow":                     {file(entry("U8", "[4294967296,4294967296]", "[0,0]"), 0), "shape [4294967296 4294967296]"},
		"overflow behind a 0":          {file(entry("U8", "[4611686018427387904,16,0]", "[0,0]"), 0), "shape [4611686018427387904 16 0]"},
		"a size that is null":          {file(entry("U8", "[null]", "[0,0]"), 0), "it lacks"},
		"unknown type":                 {file(`{"a":{"dtype":"F12","shape":[],"data_offsets":[0,0]}}`, 0), `unknown dtype "F12"`},
		"no type":                      {file(`{"a":{"shape":[],"data_offsets":[0,0]}}`, 0), "it lacks"},
		"no shape":                     {file(`{"a":{"dtype":"U8","data_offsets":[0,1]}}`, 1), "it lacks"},
		"one offset":                   {file(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}}`, 1), "it lacks"},
		"no object in it":              {file(`{"a":7}`, 0), `"a": 7, want an object`},
		"half a byte":                  {file(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}`, 1), "12 bits"},
	} {
		path := filepath.Join(t.TempDir(), "model.safetensors")
		if err := os.WriteFile(path, c.file, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := Open(path)
		if err != nil {
			if c.want == "" || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s: %v, want %q and the path", name, err, c.want)
			}
			continue
		}
		got, tensors := "", f.Tensors()
		for _, key := range slices.Sorted(maps.Keys(tensors)) {
			data, err := f.Read(key)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			got += fmt.Sprintf("%s %s%v %x;", key, tensors[key].DType, tensors[key].Shape, data)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		f.Close()
	}
}

func TestWriteRefuses(t *testing.T) {
	broken := errors.New("disk full")
	for want, s := range map[string]Source{
		"5 bytes were written, but uint8 [4] takes 4": Bytes(device.Uint8, device.Shape{4}, make([]byte, 5)),
		"cannot be written":                           {Shape: device.Shape{1}},
		"disk full":                                   {DType: device.Uint8, Write: func(io.Writer) error { return broken }},
	} {
		err := Write(io.Discard, map[string]Source{"w": s}, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), `"w"`) {
			t.Errorf("%v, want an error with %q and the tensor's name", err, want)
		}
	}
	for _, name := range []string{metadataKey, "w\xff"} {
		if err := Write(io.Discard, map[string]Source{name: Bytes(device.Uint8, nil, []byte{1})}, nil); err == nil {
			t.Errorf("a tensor was written under the name %q, which the file cannot keep", name)
		}
	}
}

// The bytes of a file are those that the format's definition says. checkpoint.TestPyTorch has PyTorch read and write files.
func TestFormat(t *testing.T) {
	var out bytes.Buffer
	if err := Write(&out, map[string]Source{
		"b": Bytes(device.BFloat16, device.Shape{2}, []byte{0x80, 0x3f, 0x20, 0xc0}),
		"f": Bytes(device.Float32, device.Shape{2, 1}, []byte{0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0}),
	}, map[string]string{"format": "pt"}); err != nil {
		t.Fatal(err)
	}
	const header = `{"__metadata__":{"format":"pt"},"f":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},` +
		`"b":{"dtype":"BF16","shape":[2],"data_offsets":[8,12]}}  ` // the spaces align the elements
	want := append(file(header, 0), 0, 0, 0x80, 0x3f, 0, 0, 0x20, 0xc0, 0x80, 0x3f, 0x20, 0xc0)
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("the file is\n%q, want\n%q", &out, want)
	}
}

// Opening any file neither panics nor allocates more than the file's size. The tensors of a file
// that opens lie within it, and the file written from them has the same tensors.
func FuzzNewFile(f *testing.F) {
	var out bytes.Buffer
	if err := Write(&out, examples(), map[string]string{"a": "b"}); err != nil {
		f.Fatal(err)
	}
	f.Add(out.Bytes())
	f.Add(file(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8))
	f.Add(file(`{"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}}  `, 2))
	f.Fuzz(func(t *testing.T, raw []byte) {
		in, err := NewFile(bytes.NewReader(raw), int64(len(raw)))
		if err != nil {
			return
		}
		again := map[string]Source{}
		for name, tensor := range in.Tensors() {
			if tensor.From < 8 || tensor.To < tensor.From || tensor.To > int64(len(raw)) {
				t.Fatalf("tensor %q lies at %d to %d of %d bytes", name, tensor.From, tensor.To, len(raw))
			}
			data, err := in.Read(name)
			if err != nil {
				t.Fatal(err)
			}
			again[name] = Source{Format: tensor.DType, Shape: tensor.Shape, Write: func(w io.Writer) error {
				_, err := w.Write(data)
				return err
			}}
		}
		var out bytes.Buffer
		if err := Write(&out, again, in.Metadata()); err != nil {
			t.Fatal(err)
		}
		second, err := NewFile(bytes.NewReader(out.Bytes()), int64(out.Len()))
		if err != nil {
			t.Fatal(err)
		}
		for name := range again {
			one, err := in.Read(name)
			other, err2 := second.Read(name)
			if !bytes.Equal(one, other) {
				t.Fatal(fmt.Errorf("tensor %q changed: %w", name, errors.Join(err, err2)))
			}
		}
	})
}
