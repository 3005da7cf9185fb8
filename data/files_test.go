package data

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/device"
)

// write writes a file into dir and returns its path.
func write(t *testing.T, dir, name string, parts ...[]byte) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, bytes.Join(parts, nil), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func zipped(t *testing.T, b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// idx returns an IDX file with elements of one byte.
func idx(elements []byte, shape ...uint32) []byte {
	out := []byte{0, 0, idxBytes, byte(len(shape))}
	for _, n := range shape {
		out = binary.BigEndian.AppendUint32(out, n)
	}
	return append(out, elements...)
}

// sample reads one sample into new memory.
func sample(t *testing.T, set Dataset, i int) []device.Tensor {
	t.Helper()
	var dst []device.Tensor
	for _, f := range set.Fields() {
		shape := append(device.Shape{1}, f.Shape...)
		dst = append(dst, device.NewTensor(device.HostBuffer(make([]byte, shape.Len()*f.DType.Size()), nil), f.DType, shape...))
	}
	if err := set.Read([]int{i}, dst); err != nil {
		t.Fatal(err)
	}
	return dst
}

// wantError fails unless the text of err contains all words.
func wantError(t *testing.T, name string, err error, words ...string) {
	t.Helper()
	for _, part := range words {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want an error with %q", name, err, words)
			return
		}
	}
}

func TestMNIST(t *testing.T) {
	dir := t.TempDir()
	pixels := make([]byte, 3*2*4)
	for i := range pixels {
		pixels[i] = byte(10 * i)
	}
	write(t, dir, "train-images-idx3-ubyte.gz", zipped(t, idx(pixels, 3, 2, 4)))
	write(t, dir, "train-labels-idx1-ubyte", idx([]byte{7, 0, 9}, 3))
	set, err := MNIST(dir, Train, &ImageOptions{Mean: []float32{0.5}, Std: []float32{2}})
	if err != nil {
		t.Fatal(err)
	}
	if set.Len() != 3 || !set.Fields()[0].Shape.Equal(device.Shape{1, 2, 4}) {
		t.Errorf("%d samples of %v", set.Len(), set.Fields()[0].Shape)
	}
	got := sample(t, set, 1)
	if label := device.Elements[int64](got[1])[0]; label != 0 {
		t.Errorf("label %d, want 0", label)
	}
	for i, v := range device.Elements[float32](got[0]) {
		if want := (float32(pixels[8+i])/255 - 0.5) / 2; v != want {
			t.Errorf("pixel %d is %v, want %v", i, v, want)
		}
	}
	_, err = MNIST(dir, Test, nil)
	wantError(t, "no test files", err, "t10k-images-idx3-ubyte", dir)
	_, err = MNIST(dir, "valid", nil)
	wantError(t, "no such split", err, `"valid"`)
}

func TestOpenIDXRefuses(t *testing.T) {
	dir := t.TempDir()
	images := write(t, dir, "images", idx(make([]byte, 8), 2, 2, 2))
	labels := write(t, dir, "labels", idx([]byte{1, 2}, 2))
	for name, c := range map[string]struct {
		images, labels string
		words          []string
	}{
		"truncated":         {write(t, dir, "short", idx(make([]byte, 5), 2, 2, 2)), labels, []string{"short", "at byte 21", "truncated: 3 bytes"}},
		"truncated header":  {write(t, dir, "header", idx(nil, 2, 2, 2)[:9]), labels, []string{"header", "at byte 9", "truncated"}},
		"truncated gzip":    {write(t, dir, "zip", zipped(t, idx(make([]byte, 800), 2, 20, 20))[:30]), labels, []string{"zip", "truncated"}},
		"claims a terabyte": {write(t, dir, "huge", idx(nil, 1<<20, 1<<10, 1<<10)), labels, []string{"huge", "sizes"}},
		"claims 60 GiB":     {write(t, dir, "large", idx(nil, 60, 1<<15, 1<<15)), labels, []string{"large", "truncated"}},
		"more bytes":        {write(t, dir, "long", idx(make([]byte, 9), 2, 2, 2)), labels, []string{"long", "more bytes than the header says"}},
		"no IDX":            {write(t, dir, "text", []byte("hello, world")), labels, []string{"text", "not an IDX file"}},
		"labels for images": {labels, labels, []string{"labels", "1 axes"}},
		"numbers":           {images, write(t, dir, "three", idx([]byte{1, 2, 3}, 3)), []string{"2 images", "3 labels"}},
		"a label":           {images, write(t, dir, "eleven", idx([]byte{1, 11}, 2)), []string{"eleven", "sample 1", "label 11", "below 10"}},
		"no file":           {filepath.Join(dir, "none"), labels, []string{"none", "no such file"}},
	} {
		_, err := OpenIDX(c.images, c.labels, 10, nil)
		wantError(t, name, err, c.words...)
	}
	_, err := OpenIDX(images, labels, 10, &ImageOptions{Std: []float32{1, 2, 3}})
	wantError(t, "channels", err, "1 channels", "Std has 3")
	_, err = OpenIDX(images, labels, 10, &ImageOptions{Std: []float32{0}})
	wantError(t, "no deviation", err, "ImageOptions.Std is [0]")
}

func TestCIFAR(t *testing.T) {
	dir := t.TempDir()
	record := func(labels []byte, value byte) []byte {
		return append(labels, bytes.Repeat([]byte{value}, 3*32*32)...)
	}
	write(t, dir, "test_batch.bin", record([]byte{3}, 51), record([]byte{9}, 255))
	write(t, dir, "train.bin", record([]byte{19, 99}, 51))
	ten, err := CIFAR10(dir, Test, nil)
	if err != nil {
		t.Fatal(err)
	}
	got := sample(t, ten, 1)
	if ten.Len() != 2 || device.Elements[float32](got[0])[3071] != 1 || device.Elements[int64](got[1])[0] != 9 {
		t.Errorf("%d samples, the second one with the label %v", ten.Len(), device.Elements[int64](got[1]))
	}
	hundred, err := CIFAR100(dir, Train, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := device.Elements[int64](sample(t, hundred, 0)[1])[0]; got != 99 {
		t.Errorf("label %d, want the fine one, 99", got)
	}
	write(t, dir, "test.bin", record([]byte{0, 1}, 1)[:3000])
	_, err = CIFAR100(dir, Test, nil)
	wantError(t, "truncated", err, "test.bin", "at byte 3000", "3074")
	write(t, dir, "test.bin", record([]byte{0, 100}, 1))
	_, err = CIFAR100(dir, Test, nil)
	wantError(t, "label", err, "sample 0", "label 100", "below 100")
	_, err = CIFAR10(dir, "valid", nil)
	wantError(t, "no such split", err, `"valid"`)
	_, err = CIFAR10(dir, Train, nil)
	wantError(t, "no files", err, "data_batch_1.bin")
}

func TestCSV(t *testing.T) {
	dir := t.TempDir()
	path := write(t, dir, "iris.csv", []byte("a,class,b\n1,0,2.5\n-3,2,1e2\n"))
	set, err := OpenCSV(path, "class", &CSVOptions{Classes: 3})
	if err != nil {
		t.Fatal(err)
	}
	got := sample(t, set, 1)
	if x := device.Elements[float32](got[0]); set.Len() != 2 || !slices.Equal(x, []float32{-3, 100}) || device.Elements[int64](got[1])[0] != 2 {
		t.Errorf("%d rows, the second one %v", set.Len(), x)
	}
	for _, text := range []string{"16777217", "16777217.0", "1.6777217e+07"} { // a float32 is 16777216
		many, err := OpenCSV(write(t, dir, "many.csv", []byte("a,class\n1,"+text+"\n")), "class", &CSVOptions{Classes: 1 << 25})
		if err != nil {
			t.Fatal(err)
		}
		if class := device.Elements[int64](sample(t, many, 0)[1])[0]; class != 16777217 {
			t.Errorf("%s is the class %d", text, class)
		}
	}
	regression, err := OpenCSV(path, "b", &CSVOptions{Features: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	if y := device.Elements[float32](sample(t, regression, 0)[1]); y[0] != 2.5 {
		t.Errorf("target %v, want 2.5", y)
	}
	for name, c := range map[string]struct {
		text  string
		words []string
	}{
		"no class": {"a,class\n1,3\n", []string{"line 2", `("class")`, "0 to 2"}},
		"negative": {"a,class\n1,-1\n", []string{"line 2", `class "-1", want an integer from 0 to 2`}},
		"infinity": {"a,class\n1,inf\n", []string{`class "inf", want an integer`}},
		"text":     {"a,class\n1,cat\n", []string{`class "cat", want an integer`}},
		"huge":     {"a,class\n1,1e300\n", []string{`class "1e300", want an integer`}},
		"half":     {"a,class\n1,0.5\n", []string{"line 2", "0.5"}},
	} {
		_, err := OpenCSV(write(t, dir, "bad.csv", []byte(c.text)), "class", &CSVOptions{Classes: 3})
		wantError(t, name, err, append(c.words, "bad.csv")...)
	}
}

// TestCSVForms reads CSV files of various origins: each gives rows and targets, or an error.
func TestCSVForms(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		text string
		want string // what a table holds, or words of an error
	}{
		"plain":                   {"a,b,y\n1,2,0\n3,4,1\n", "[[1 2] [3 4]] [0 1]"},
		"no final newline":        {"a,y\n1,0", "[[1]] [0]"},
		"CRLF":                    {"a,y\r\n1,0\r\n", "[[1]] [0]"},
		"CR":                      {"a,y\r1,0\r", `column 2 of the header is "y\r1": want UTF-8, and lines that end with LF or CRLF`},
		"byte order mark":         {"\ufeffy,a\n1,2\n", "[[2]] [1]"},
		"mark, quoted":            {"\ufeff\"y\",a\n1,2\n", "[[2]] [1]"},
		"UTF-16":                  {"\xff\xfea\x00,\x00y\x00\n\x00", `column 1 of the header is "\xff\xfea\x00": want UTF-8`},
		"UTF-16 without mark":     {"a\x00,\x00y\x00\n\x00", `column 1 of the header is "a\x00": want UTF-8`},
		"Latin-1":                 {"gr\xf6\xdfe,y\n1,2\n", "[[1]] [2]"},
		"semicolons":              {"a;y\n1;0\n", `target: there is no column "y", only "a;y": want commas`},
		"tabs":                    {"a\ty\n1\t0\n", `there is no column "y", only "a\ty": want commas`},
		"quoted":                  {"\"a\",\"y\"\n\"1\",\"0\"\n", "[[1]] [0]"},
		"a quoted comma":          {"\"a,b\",y\n1,0\n", "[[1]] [0]"},
		"a quoted line":           {"\"a\nb\",y\n1,0\n", "[[1]] [0]"},
		"an open quote":           {"a,y\n\"1,0\n", "line 2"},
		"spaces":                  {"a, \"b\" ,y \n 1, 2 ,\t0\n", `extraneous or missing " in quoted-field`},
		"spaces around numbers":   {" a, b ,y \n 1, \"2\",\t0\n", "[[1 2]] [0]"},
		"ragged, short":           {"a,b,y\n1,2,0\n1,2\n", "line 3 has 2 columns, but the header has 3"},
		"ragged, long":            {"a,y\n1,0,2\n", "line 2 has 3 columns, but the header has 2"},
		"commas at the ends":      {"a,y,\n1,0,\n", `line 2, column 3 (""): "" is not a number`},
		"empty lines":             {"\n\na,y\n\n1,0\n\n\n2,1\n\n", "[[1] [2]] [0 1]"},
		"a comment":               {"# about\na,y\n1,0\n", `there is no column "y", only "# about"`},
		"a comment behind":        {"a,y\n# about\n1,0\n", "line 2 has 1 columns, but the header has 2"},
		"an empty cell":           {"a,y\n1,0\n,1\n", `line 3, column 1 ("a"): "" is not a number`},
		"NA":                      {"a,y\nNA,0\n", `"NA" is not a number`},
		"not finite":              {"a,b,c,y\nnan,NaN,-inf,Infinity\n", "[[NaN NaN -Inf]] [+Inf]"},
		"exponents and signs":     {"a,b,c,y\n1e2,+.5,-2E-1,5.\n", "[[100 0.5 -0.2]] [5]"},
		"hexadecimal":             {"a,y\n0x1F,0\n", `"0x1F" is not a number`},
		"underscores":             {"a,y\n1_000,0\n", "[[1000]] [0]"},
		"thousands":               {"a,y\n\"1,000\",0\n", `"1,000" is not a number`},
		"a decimal comma":         {"a,y\n\"1,5\",0\n", `"1,5" is not a number`},
		"a decimal comma, bare":   {"a,y\n1,5,0\n", "line 2 has 3 columns"},
		"overflow":                {"a,y\n1e400,0\n", `"1e400" exceeds float32's maximum`},
		"overflow of float32":     {"a,y\n-1e39,0\n", `"-1e39" exceeds float32's maximum, 3.4028234663852886e+38`},
		"underflow":               {"a,y\n1e-60,0\n", "[[0]] [0]"},
		"whole numbers":           {"a,b,y\n16777216,-33554436,3000000000\n", "[[1.6777216e+07 -3.3554436e+07]] [3e+09]"},
		"a whole number, rounded": {"a,y\n16777217,0\n", `"16777217" is an integer that float32 rounds to 16777216`},
		"underscores, rounded":    {"a,y\n16_777_217,0\n", `"16_777_217" is an integer that float32 rounds to 16777216`},
		"negative, rounded":       {"a,y\n1,-1700000001\n", `line 2, column 2 ("y"): "-1700000001" is an integer that float32 rounds to -1700000000`},
		"20 digits":               {"a,y\n10000000000000000000,0\n", `is an integer that float32 rounds to`},
		"a point":                 {"a,y\n16777217.0,0\n", "[[1.6777216e+07]] [0]"},
		"text":                    {"a,y\n1,cat\n", `line 2, column 2 ("y"): "cat" is not a number`},
		"booleans":                {"a,y\ntrue,0\n", `"true" is not a number`},
		"zero bytes":              {"a,y\n1\x00,0\n", `"1\x00" is not a number`},
		"one name twice":          {"a,a,y\n1,2,0\n3,4,1\n", "[[1 2] [3 4]] [0 1]"},
		"two without a name":      {",,y\n1,2,0\n", "[[1 2]] [0]"},
		"the target twice":        {"y,a,y\n1,2,0\n", `target: columns 1 and 3 are both named "y"`},
		"the target, trimmed":     {"y,a, y\n1,2,0\n", `target: columns 1 and 3 are both named "y"`},
		"a header again":          {"a,y\n1,0\na,y\n", `line 3, column 1 ("a"): "a" is not a number`},
		"no header":               {"1,2\n3,4\n", `there is no column "y"; there are ["1" "2"]`},
		"only a header":           {"a,y\n", "no rows after the header"},
		"only a target":           {"y\n1\n", `no features besides the target "y"`},
		"empty":                   {"", "the file is empty"},
		"only a mark":             {"\ufeff", "the file is empty"},
		"only empty lines":        {"\r\n\n", "the file is empty"},
		"gzip":                    {string(zipped(t, []byte("a,y\n1,0\n"))), "[[1]] [0]"},
		"gzip, truncated":         {string(zipped(t, []byte("a,y\n1,0\n"))[:25]), "unexpected EOF"},
		"zip":                     {"PK\x03\x04\x14\x00\x00\x00", "want UTF-8"},
	} {
		set, err := OpenCSV(write(t, dir, "forms.csv", []byte(c.text)), "y", nil)
		if err == nil {
			if got := fmt.Sprint(set.(*table).rows, set.(*table).targets); got != c.want {
				t.Errorf("%s: %s, want %s", name, got, c.want)
			}
			continue
		}
		wantError(t, name, err, "forms.csv", c.want)
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error has several lines: %v", name, err)
		}
	}

	rounded, err := OpenCSV(write(t, dir, "rounded.csv", []byte("a,y\n16777217,-1700000001\n")), "y", &CSVOptions{Round: true})
	if err != nil || rounded.(*table).rows[0][0] != 16777216 || rounded.(*table).targets[0] != -1.7e9 {
		t.Errorf("Round: %v, %v", rounded, err)
	}
	path := write(t, dir, "names.csv", []byte("a,b,b,,y\n1,2,3,4,5\n"))
	for want, opts := range map[string]CSVOptions{
		"CSVOptions.Features: columns 2 and 3 are both named \"b\"": {Features: []string{"a", "b"}},
		"CSVOptions.Features: there is no column \"c\"":             {Features: []string{"c"}},
		"CSVOptions.Features: want the name of a column":            {Features: []string{""}},
		"column \"a\" is named twice in target and Features":        {Features: []string{"a", "a"}},
		"column \"y\" is named twice in target and Features":        {Features: []string{"y"}},
		"no features besides the target":                            {Features: []string{}},
		"CSVOptions.Classes is -1":                                  {Classes: -1},
	} {
		_, err := OpenCSV(path, "y", &opts)
		wantError(t, want, err, "names.csv", want)
	}
	_, err = OpenCSV(path, "", nil)
	wantError(t, "without a target", err, "target: want the name of a column")
	set, err := OpenCSV(path, "y", &CSVOptions{Features: []string{" a"}})
	if err != nil || fmt.Sprint(set.(*table).columns, set.(*table).rows, set.(*table).targets) != "[a] [[1]] [5]" {
		t.Errorf("a beside columns of one name: %v, %v", set, err)
	}
}

// A file that is not regular is an error at once, also a pipe without a writer.
func TestReadersRefuseOtherThanFiles(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "train.bin")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{pipe: "is not a regular file but a named pipe", dir: "is a directory"} {
		_, err := OpenCSV(path, "y", nil)
		wantError(t, "CSV", err, path, want)
		_, err = OpenTokens(path, 10, 50257)
		wantError(t, "tokens", err, path, want)
		_, err = OpenIDX(path, path, 10, nil)
		wantError(t, "IDX", err, path, want)
	}
	_, err := CIFAR100(dir, Train, nil)
	wantError(t, "CIFAR", err, pipe, "is not a regular file but a named pipe")
}

// shardOf writes a shard with n consecutive tokens of 16 bits, starting with from.
func shardOf(t *testing.T, path string, from, n int) { shardOfType[uint16](t, path, from, n) }

func shardOfType[T uint16 | uint32](t *testing.T, path string, from, n int) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	written, err := WriteTokens(f, func(yield func(T) bool) {
		for i := range n {
			if !yield(T(from + i)) {
				return
			}
		}
	})
	if err != nil || written != n {
		t.Fatalf("%d tokens written: %v", written, err)
	}
}

func TestTokens(t *testing.T) {
	dir := t.TempDir()
	shardOf(t, filepath.Join(dir, "train_0.bin"), 0, 10)   // its windows begin at the tokens 0, 3 and 6
	shardOf(t, filepath.Join(dir, "train_1.bin"), 100, 12) // its windows begin at the tokens 100, 103 and 106
	shardOfType[uint32](t, filepath.Join(dir, "train_4.bin"), 151_660, 7)
	for i, n := range map[int]int{0: 3, 2: 0, 3: 3} { // without a window, before, between and after the others
		shardOf(t, filepath.Join(dir, fmt.Sprintf("train_%d_short.bin", i)), 150, n)
	}
	set, err := OpenTokens(filepath.Join(dir, "train_*.bin"), 3, 151_669)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	var starts []int64
	for i := range set.Len() {
		got := sample(t, set, i)
		tokens, next := device.Elements[int64](got[0]), device.Elements[int64](got[1])
		for j := range tokens {
			if tokens[j] != tokens[0]+int64(j) || next[j] != tokens[j]+1 {
				t.Errorf("window %d: %v and %v", i, tokens, next)
			}
		}
		starts = append(starts, tokens[0])
	}
	if want := []int64{0, 3, 6, 100, 103, 106, 151_660, 151_663}; !slices.Equal(starts, want) {
		t.Errorf("windows begin with %v, want %v", starts, want)
	}

	small, err := OpenTokens(filepath.Join(dir, "train_*.bin"), 3, 105)
	if err != nil {
		t.Fatal(err)
	}
	defer small.Close()
	dst := make([]device.Tensor, 2)
	for f := range dst {
		dst[f] = device.HostTensor(make([]int64, 3), device.Invalid, 1, 3)
	}
	wantError(t, "vocabulary", small.Read([]int{4}, dst), "train_1.bin", "at byte 1034", "token 105", "below 105")
	wantError(t, "vocabulary", small.Read([]int{7}, dst), "train_4.bin", "at byte 1036", "token 151663", "below 105")
}

func TestOpenTokensRefuses(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.bin")
	shardOf(t, good, 0, 100)
	raw, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	magic := slices.Clone(raw)
	magic[0]++
	for name, c := range map[string]struct {
		path  string
		words []string
	}{
		"truncated": {write(t, dir, "a", raw[:1100]), []string{"at byte 1100", "truncated", "100 tokens", "1224"}},
		"long":      {write(t, dir, "f", raw, []byte{1, 2}), []string{"at byte 1224", "100 tokens", "1226"}},
		"header":    {write(t, dir, "b", raw[:600]), []string{"at byte 600", "truncated"}},
		"stub":      {write(t, dir, "g", raw[:5]), []string{"at byte 5", "truncated"}},
		"magic":     {write(t, dir, "c", magic), []string{"20240521", "20240520", "20240801"}},
		"short":     {write(t, dir, "d", raw[:8], []byte{2, 0, 0, 0}, raw[12:shardHeader+4]), []string{"2 tokens", "at least 11"}},
		"nothing":   {filepath.Join(dir, "none*"), []string{"no file"}},
	} {
		_, err := OpenTokens(c.path, 10, 50257)
		wantError(t, name, err, c.words...)
	}
	shardOf(t, filepath.Join(dir, "short_0"), 0, 3)
	shardOf(t, filepath.Join(dir, "short_1"), 0, 10)
	_, err = OpenTokens(filepath.Join(dir, "short_*"), 10, 50257)
	wantError(t, "all are short", err, "short_*", "at most 10 tokens", "at least 11")
	// An incomplete shard has zeros instead of a header.
	unfinished := write(t, dir, "e", make([]byte, shardHeader), raw[shardHeader:])
	_, err = OpenTokens(unfinished, 10, 50257)
	wantError(t, "unfinished", err, "magic number 0")
	for _, c := range [][2]int{{0, 5}, {5, 0}} {
		_, err := OpenTokens(good, c[0], c[1])
		wantError(t, fmt.Sprint(c), err, fmt.Sprint(c[0]), fmt.Sprint(c[1]))
	}
}
