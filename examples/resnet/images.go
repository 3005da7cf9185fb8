package main

import (
	"fmt"
	"image"
	"image/color"
	_ "image/jpeg" // decodes
	_ "image/png"  // decodes
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/goddp/goddp/data"
	"github.com/goddp/goddp/device"
)

// The means and standard deviations of ImageNet's colors.
var (
	colorMean = [3]float32{0.485, 0.456, 0.406}
	colorStd  = [3]float32{0.229, 0.224, 0.225}
)

// imagesIn returns a data set of the JPEG and PNG files in a folder that has a folder for each class, and the
// number of classes. An image [size size 3] is the largest square in the middle of a file's picture, scaled.
func imagesIn(folder string, size int) (data.Dataset, int, error) {
	classes, err := os.ReadDir(folder)
	if err != nil {
		return nil, 0, err
	}
	type sample struct {
		file  string
		label int64
	}
	var samples []sample
	for label, class := range classes {
		files, err := os.ReadDir(filepath.Join(folder, class.Name()))
		if err != nil {
			return nil, 0, fmt.Errorf("%w: want a folder for each class, and nothing else", err)
		}
		for _, f := range files {
			file := filepath.Join(folder, class.Name(), f.Name())
			if !f.Type().IsRegular() && f.Type() != fs.ModeSymlink {
				return nil, 0, fmt.Errorf("%s is neither a file nor a link, want an image file", file)
			}
			samples = append(samples, sample{file, int64(label)})
		}
		if len(files) == 0 {
			return nil, 0, fmt.Errorf("%s: no images, want some of each class", filepath.Join(folder, class.Name()))
		}
	}
	if len(samples) == 0 {
		return nil, 0, fmt.Errorf("%s: no images, want a folder with files for each class", folder)
	}
	fields := []data.Field{{Name: "image", DType: device.Float32, Shape: device.Shape{size, size, 3}}, {Name: "label", DType: device.Int64}}
	return data.Each(len(samples), fields, func(i int, dst []device.Tensor) error {
		device.Elements[int64](dst[1])[0] = samples[i].label
		return readImage(samples[i].file, size, device.Elements[float32](dst[0]))
	}), len(classes), nil
}

// maxPixels is Pillow's bound for pictures: a few bytes may claim a picture that fills the memory.
const maxPixels = 178956970

// readImage writes the pixels of a file into dst [size size 3]. Each is the mean of the pixels of the picture
// that it covers. As in torchvision's ImageFolder, transparency and the orientation in EXIF do not count, and the
// content decides the format, not the name.
func readImage(file string, size int, dst []float32) error {
	picture, err := decode(file)
	if err != nil {
		return fmt.Errorf("%s: want a JPEG or PNG file: %w", file, err)
	}
	b := picture.Bounds()
	side := min(b.Dx(), b.Dy())
	left, top := b.Min.X+(b.Dx()-side)/2, b.Min.Y+(b.Dy()-side)/2
	for y := range size {
		for x := range size {
			var sum [3]float32
			n := float32(0)
			for v := y * side / size; v < max((y+1)*side/size, y*side/size+1); v++ {
				for u := x * side / size; u < max((x+1)*side/size, x*side/size+1); u++ {
					for i, c := range colors(picture.At(left+u, top+v)) {
						sum[i] += float32(c) / 0xffff
					}
					n++
				}
			}
			for i := range 3 {
				dst[(y*size+x)*3+i] = (sum[i]/n - colorMean[i]) / colorStd[i]
			}
		}
	}
	return nil
}

func decode(file string) (image.Image, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head, _, err := image.DecodeConfig(f)
	if err != nil {
		return nil, err
	}
	if n := head.Width * head.Height; n < 1 || n > maxPixels {
		return nil, fmt.Errorf("%d x %d pixels, want 1 to %d", head.Width, head.Height, maxPixels)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	picture, _, err := image.Decode(f)
	return picture, err
}

// colors returns a pixel's red, green and blue, from 0 to 0xffff, as if the pixel were opaque.
func colors(c color.Color) [3]uint32 {
	switch c := c.(type) {
	case color.NRGBA:
		return [3]uint32{0x101 * uint32(c.R), 0x101 * uint32(c.G), 0x101 * uint32(c.B)}
	case color.NRGBA64:
		return [3]uint32{uint32(c.R), uint32(c.G), uint32(c.B)}
	}
	red, green, blue, _ := c.RGBA() // opaque
	return [3]uint32{red, green, blue}
}
