package data

import (
	"fmt"
	"io"
	"path/filepath"
)

// CIFAR10 reads the binary version of CIFAR-10 (data_batch_1.bin to data_batch_5.bin, test_batch.bin)
// from dir.
func CIFAR10(dir string, split Split, opts *ImageOptions) (Dataset, error) {
	files := map[Split][]string{
		Train: {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
		Test:  {"test_batch.bin"},
	}
	return cifar(dir, files[split], split, 10, 1, opts)
}

// CIFAR100 reads the binary version of CIFAR-100 (train.bin, test.bin) from dir. The labels are the 100
// fine labels.
func CIFAR100(dir string, split Split, opts *ImageOptions) (Dataset, error) {
	files := map[Split][]string{Train: {"train.bin"}, Test: {"test.bin"}}
	return cifar(dir, files[split], split, 100, 2, opts)
}

// cifar reads files of records. A record begins with labelBytes bytes, the last of which is the label. 3
// planes of 32 × 32 bytes follow.
func cifar(dir string, files []string, split Split, classes, labelBytes int, opts *ImageOptions) (Dataset, error) {
	if files == nil {
		return nil, fmt.Errorf("data: CIFAR split %q, want %q or %q", split, Train, Test)
	}
	const pixels = 3 * 32 * 32
	record := labelBytes + pixels
	im := images{channels: 3, height: 32, width: 32, classes: classes}
	for _, name := range files {
		path := filepath.Join(dir, name)
		f, err := open(path)
		if err != nil {
			return nil, err
		}
		raw, err := io.ReadAll(f.r)
		f.close()
		if err != nil {
			return nil, f.fail(err)
		}
		if len(raw) == 0 || len(raw)%record != 0 {
			return nil, fmt.Errorf("data: %s: at byte %d: truncated: the size must be a multiple of a record's %d bytes", path, len(raw), record)
		}
		for ; len(raw) > 0; raw = raw[record:] {
			im.labels = append(im.labels, raw[labelBytes-1])
			im.pixels = append(im.pixels, raw[labelBytes:record]...)
		}
	}
	return newImages(dir, im, opts)
}
