package data

import (
	"encoding/binary"
	"fmt"
)

// MNIST reads images of the MNIST family (MNIST, Fashion-MNIST, KMNIST) from four files in dir, with the
// usual names and optionally gzipped.
func MNIST(dir string, split Split, opts *ImageOptions) (Dataset, error) {
	prefix, ok := map[Split]string{Train: "train", Test: "t10k"}[split]
	if !ok {
		return nil, fmt.Errorf("data: MNIST split %q, want %q or %q", split, Train, Test)
	}
	pictures, err := find(dir, prefix+"-images-idx3-ubyte")
	if err != nil {
		return nil, err
	}
	labels, err := find(dir, prefix+"-labels-idx1-ubyte")
	if err != nil {
		return nil, err
	}
	return OpenIDX(pictures, labels, 10, opts)
}

// OpenIDX reads images [n, height, width] and labels [n] below classes from two IDX files of bytes,
// optionally gzipped. yann.lecun.com/exdb/mnist defines the format.
func OpenIDX(pictures, labels string, classes int, opts *ImageOptions) (Dataset, error) {
	shape, pixels, err := readIDX(pictures, 3)
	if err != nil {
		return nil, err
	}
	count, numbers, err := readIDX(labels, 1)
	if err != nil {
		return nil, err
	}
	if shape[0] != count[0] {
		return nil, fmt.Errorf("data: %d images in %s, but %d labels in %s", shape[0], pictures, count[0], labels)
	}
	return newImages(labels, images{channels: 1, height: shape[1], width: shape[2], classes: classes, pixels: pixels, labels: numbers}, opts)
}

// idxBytes is the IDX format's code for elements of one byte.
const idxBytes = 0x08

// maxIDX is the maximum size of a file in bytes.
const maxIDX = 1 << 36

// readIDX reads an IDX file of bytes with the given number of axes.
func readIDX(path string, axes int) (shape []int, elements []byte, err error) {
	f, err := open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.close()
	head, err := f.read(4)
	if err != nil {
		return nil, nil, err
	}
	if head[0] != 0 || head[1] != 0 {
		return nil, nil, f.fail(fmt.Errorf("not an IDX file: it starts with % x, want 00 00", head[:2]))
	}
	if head[2] != idxBytes || int(head[3]) != axes {
		return nil, nil, f.fail(fmt.Errorf("the file has elements of type %#02x with %d axes, want bytes (type %#02x) with %d axes", head[2], head[3], idxBytes, axes))
	}
	sizes, err := f.read(4 * axes)
	if err != nil {
		return nil, nil, err
	}
	total := 1
	for i := range axes {
		size := int(binary.BigEndian.Uint32(sizes[4*i:]))
		shape = append(shape, size)
		if size == 0 || total > maxIDX/size {
			return nil, nil, f.fail(fmt.Errorf("sizes %v, want each at least 1 and at most %d bytes in total", shape, maxIDX))
		}
		total *= size
	}
	if elements, err = f.read(total); err != nil {
		return nil, nil, err
	}
	return shape, elements, f.end()
}
