package main

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"fmt"
	"go/build"
	"hash/crc32"
	"image"
	"image/color"
	"image/jpeg"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goddp/goddp/internal/testkit"
)

// chunk returns a chunk of a PNG file.
func chunk(kind string, content ...byte) []byte {
	out := binary.BigEndian.AppendUint32(nil, uint32(len(content)))
	out = append(append(out, kind...), content...)
	return binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(out[4:]))
}

// The types of color of a PNG file.
const grey, rgb, palette, greyAlpha, rgba = 0, 2, 3, 4, 6

// pngOf returns a PNG file. rows are the filtered rows, and extra are chunks before them.
func pngOf(width, height uint32, depth, kind, interlace byte, rows []byte, extra ...[]byte) []byte {
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, width), height)
	var packed bytes.Buffer
	w := zlib.NewWriter(&packed)
	w.Write(rows) // a Buffer has no errors
	w.Close()
	parts := [][]byte{[]byte("\x89PNG\r\n\x1a\n"), chunk("IHDR", append(head, depth, kind, 0, 0, interlace)...)}
	parts = append(append(parts, extra...), chunk("IDAT", packed.Bytes()...), chunk("IEND"))
	return bytes.Join(parts, nil)
}

// TestReadImage says of pictures as they are found which colors readImage makes of them, or which error.
func TestReadImage(t *testing.T) {
	// square is a JPEG file of one color above another.
	square := func(upper, lower color.Color) []byte {
		picture := image.NewRGBA(image.Rect(0, 0, 32, 32))
		for i := range 32 * 32 {
			picture.Set(i%32, i/32, []color.Color{upper, lower}[i/512])
		}
		var b bytes.Buffer
		jpeg.Encode(&b, picture, &jpeg.Options{Quality: 100}) // a Buffer has no errors
		return b.Bytes()
	}
	orange := []byte{250, 120, 10}
	photo := square(color.White, color.Black)
	size := bytes.Index(photo, []byte{0xff, 0xc0}) + 4 // of the frame: precision, height, width
	edit := func(at int, with ...byte) []byte {
		return slices.Replace(slices.Clone(photo), at, at+len(with), with...)
	}
	orientation := append([]byte{0xff, 0xe1, 0, 34}, "Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00"...)
	rows := func(pixel ...byte) []byte { return slices.Concat([]byte{0}, pixel, pixel, []byte{0}, pixel, pixel) }
	plain := pngOf(2, 2, 8, rgb, 0, rows(orange...))

	for name, c := range map[string]struct {
		content []byte
		want    string // the colors, 0 to 255, of four pixels, of one if all are equal; or a part of the error
	}{
		"rgb.png":          {plain, "250 120 10"},
		"rgb16.png":        {pngOf(2, 2, 16, rgb, 0, rows(250, 250, 120, 120, 10, 10)), "250 120 10"},
		"grey.png":         {pngOf(2, 2, 8, grey, 0, rows(77)), "77 77 77"},
		"grey1.png":        {pngOf(2, 2, 1, grey, 0, []byte{0, 0b01000000, 0, 0b10000000}), "0 0 0, 255 255 255, 255 255 255, 0 0 0"},
		"grey16.png":       {pngOf(2, 2, 16, grey, 0, rows(77, 77)), "77 77 77"},
		"palette.png":      {pngOf(2, 2, 8, palette, 0, rows(1), chunk("PLTE", 1, 2, 3, 250, 120, 10)), "250 120 10"},
		"transparent.png":  {pngOf(2, 2, 8, palette, 0, rows(1), chunk("PLTE", 1, 2, 3, 250, 120, 10), chunk("tRNS", 255, 0)), "250 120 10"},
		"no palette.png":   {pngOf(2, 2, 8, palette, 0, rows(1)), "want a JPEG or PNG file: png: invalid format"},
		"beyond.png":       {pngOf(2, 2, 8, palette, 0, rows(7), chunk("PLTE", 1, 2, 3)), "0 0 0"},
		"grey alpha.png":   {pngOf(2, 2, 8, greyAlpha, 0, rows(77, 128)), "77 77 77"},
		"alpha.png":        {pngOf(2, 2, 8, rgba, 0, rows(250, 120, 10, 128)), "250 120 10"},
		"alpha16.png":      {pngOf(2, 2, 16, rgba, 0, rows(250, 250, 120, 120, 10, 10, 0, 0)), "250 120 10"},
		"interlaced.png":   {pngOf(2, 2, 8, grey, 1, []byte{0, 10, 0, 20, 0, 30, 40}), "10 10 10, 20 20 20, 30 30 30, 40 40 40"},
		"animated.png":     {pngOf(2, 2, 8, rgb, 0, rows(orange...), chunk("acTL", 0, 0, 0, 2, 0, 0, 0, 0)), "250 120 10"},
		"wide.png":         {pngOf(6, 2, 8, grey, 0, []byte{0, 1, 1, 9, 9, 1, 1, 0, 1, 1, 9, 9, 1, 1}), "9 9 9"},
		"one pixel.png":    {pngOf(1, 1, 8, grey, 0, []byte{0, 9}), "9 9 9"},
		"no width.png":     {pngOf(0, 2, 8, rgb, 0, nil), "png: invalid format: non-positive dimension"},
		"huge.png":         {pngOf(1<<20, 1<<20, 8, grey, 0, nil), "1048576 x 1048576 pixels, want 1 to 178956970"},
		"truncated.png":    {plain[:len(plain)-20], "unexpected EOF"},
		"header alone.png": {plain[:33], "unexpected EOF"},
		"damaged.png":      {slices.Replace(slices.Clone(plain), 45, 46, plain[45]+1), "png: invalid format"},
		"photo.png":        {square(color.Gray{77}, color.Gray{77}), "77 77 77"},
		"photo.jpg":        {photo, "255 255 255, 255 255 255, 0 0 0, 0 0 0"},
		"rgb.jpg":          {plain, "250 120 10"},
		"turned.jpg":       {slices.Concat(photo[:2], orientation, photo[2:]), "255 255 255, 255 255 255, 0 0 0, 0 0 0"},
		"truncated.jpg":    {photo[:len(photo)-10], "invalid JPEG format: short Huffman data"},
		"12 bits.jpg":      {edit(size, 12), "unsupported JPEG feature: precision"},
		"arithmetic.jpg":   {edit(size-3, 0xc9), "unsupported JPEG feature"},
		"no height.jpg":    {edit(size+1, 0, 0), "32 x 0 pixels, want 1 to"},
		"huge.jpg":         {edit(size+1, 0xff, 0xff, 0xff, 0xff), "65535 x 65535 pixels, want 1 to"},
		"animated.gif":     {[]byte("GIF89a\x01\x00\x01\x00\x00\x00\x00;"), "want a JPEG or PNG file: image: unknown format"},
		"picture.webp":     {[]byte("RIFF\x1a\x00\x00\x00WEBPVP8L"), "image: unknown format"},
		"picture.bmp":      {[]byte("BM\x46\x00\x00\x00\x00\x00"), "image: unknown format"},
		"scan.tiff":        {[]byte("II*\x00\x08\x00\x00\x00"), "image: unknown format"},
		"pointer.jpg":      {[]byte("version https://git-lfs.github.com/spec/v1\n"), "image: unknown format"},
		"text.png":         {[]byte("a cat\n"), "image: unknown format"},
		"empty.jpg":        {nil, "want a JPEG or PNG file: image: unknown format"},
	} {
		file := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(file, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := colorsOf(file); got != c.want && (!strings.Contains(got, c.want) || !strings.HasPrefix(got, file)) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestReadImageOfGo reads pictures that the Go distribution holds: each is the same one in other formats, but for CMYK
// without a profile.
func TestReadImageOfGo(t *testing.T) {
	dir := filepath.Join(build.Default.GOROOT, "src/image/testdata")
	testkit.Need(t, testkit.Requires("the test data of Go's package image", func() error {
		_, err := os.Stat(dir)
		return err
	}))
	for name, want := range map[string]string{
		"video-001.cmyk.jpeg":                       "90 23 12, 76 18 9, 147 131 125, 121 105 106",
		"video-001.progressive.jpeg":                "153 61 24, 140 55 19, 177 162 146, 152 138 129",
		"video-001.progressive.truncated.jpeg":      "152 61 24, 140 55 20, 176 161 145, 151 137 128",
		"video-001.q50.410.jpeg":                    "152 61 25, 139 55 21, 176 161 145, 151 137 127",
		"../png/testdata/pngsuite/basn3p04-31i.png": "189 201 3, 19 238 128, 19 238 128, 58 71 249",
		"../png/testdata/pngsuite/basn6a16.png":     "223 223 0, 32 223 32, 223 32 32, 32 32 192",
		"video-001.png":                             "153 61 24, 141 54 19, 177 162 146, 152 138 129",
		"video-005.gray.jpeg":                       "149 149 149, 87 87 87, 136 136 136, 107 107 107",
		"video-001.jpeg":                            "153 61 24, 140 55 19, 177 162 146, 152 138 129",
		"video-001.rgb.jpeg":                        "153 61 24, 141 55 19, 177 161 146, 152 137 129",
		"video-001.cmyk.png":                        "90 23 12, 76 17 9, 147 131 125, 121 105 106",
	} {
		if got := colorsOf(filepath.Join(dir, name)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// colorsOf returns the colors that readImage reads as [2 2 3], or its error.
func colorsOf(file string) string {
	pixels := make([]float32, 2*2*3)
	if err := readImage(file, 2, pixels); err != nil {
		return err.Error()
	}
	var text []string
	for p := range slices.Chunk(pixels, 3) {
		for i := range p {
			p[i] = float32(math.Round(float64(255 * (p[i]*colorStd[i] + colorMean[i]))))
		}
		text = append(text, fmt.Sprintf("%v %v %v", p[0], p[1], p[2]))
	}
	if len(slices.Compact(slices.Clone(text))) == 1 {
		return text[0]
	}
	return strings.Join(text, ", ")
}

// What is in a folder is images of classes, or an error.
func TestImagesInRefuses(t *testing.T) {
	dir := t.TempDir()
	want := func(words string) {
		t.Helper()
		if _, _, err := imagesIn(dir, 8); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
	want("no images, want a folder with files for each class")
	class := filepath.Join(dir, "cats")
	if err := os.Mkdir(class, 0o700); err != nil {
		t.Fatal(err)
	}
	want("cats: no images, want some of each class")
	if err := syscall.Mkfifo(filepath.Join(class, "one.png"), 0o600); err != nil {
		t.Fatal(err)
	}
	want("one.png is neither a file nor a link")
	if err := os.WriteFile(filepath.Join(dir, ".DS_Store"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want(".DS_Store: not a directory: want a folder for each class, and nothing else")
}
