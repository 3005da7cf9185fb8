package data

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/goddp/goddp/device"
)

// Split is a part of a published data set.
type Split string

// The parts of a published data set.
const (
	Train Split = "train"
	Test  Split = "test"
)

// ImageOptions are the choices of a data set of images. Its fields are "image", Float32 [channels, height, width], and
// "label", Int64. The options scale pixels: channel c of a pixel v, 0 to 255, becomes (v/255 - Mean[c]) / Std[c].
type ImageOptions struct {
	Mean, Std []float32 // one for each channel; nil means 0 and 1
}

// images is a [Dataset] of images of the same size in memory, with one byte for each channel of a pixel, and their
// labels.
type images struct {
	channels, height, width int
	classes                 int     // the number of classes; labels are less
	pixels                  []byte  // [image, channel, row, column]
	labels                  []uint8 // one for each image

	values [][256]float32 // the scaled value of each byte, for each channel
}

// newImages validates images and labels that were read from path.
func newImages(path string, im images, opts *ImageOptions) (Dataset, error) {
	for i, label := range im.labels {
		if int(label) >= im.classes {
			return nil, fmt.Errorf("data: %s: sample %d has label %d, want a label below %d", path, i, label, im.classes)
		}
	}
	o := *cmp.Or(opts, &ImageOptions{})
	for name, v := range map[string][]float32{"Mean": o.Mean, "Std": o.Std} {
		if v != nil && len(v) != im.channels {
			return nil, fmt.Errorf("data: %s: images have %d channels, but ImageOptions.%s has %d values", path, im.channels, name, len(v))
		}
	}
	if slices.Contains(o.Std, 0) {
		return nil, fmt.Errorf("data: ImageOptions.Std is %v, want no 0 in it", o.Std)
	}
	im.values = make([][256]float32, im.channels)
	for c := range im.values {
		mean, std := float32(0), float32(1)
		if o.Mean != nil {
			mean = o.Mean[c]
		}
		if o.Std != nil {
			std = o.Std[c]
		}
		for v := range im.values[c] {
			im.values[c][v] = (float32(v)/255 - mean) / std
		}
	}
	return &im, nil
}

func (im *images) Len() int { return len(im.labels) }

func (im *images) Fields() []Field {
	return []Field{
		{Name: "image", DType: device.Float32, Shape: device.Shape{im.channels, im.height, im.width}},
		{Name: "label", DType: device.Int64},
	}
}

func (im *images) Read(indices []int, dst []device.Tensor) error {
	plane := im.height * im.width
	out, labels := device.Elements[float32](dst[0]), device.Elements[int64](dst[1])
	for row, i := range indices {
		labels[row] = int64(im.labels[i])
		for c := range im.channels {
			values := &im.values[c]
			to := out[(row*im.channels+c)*plane:][:plane]
			for j, v := range im.pixels[(i*im.channels+c)*plane:][:plane] {
				to[j] = values[v]
			}
		}
	}
	return nil
}
