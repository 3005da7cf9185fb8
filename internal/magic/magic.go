// Package magic recognises files by their first bytes, so that the error of a reader that expects
// another format says what the file is.
package magic

import "bytes"

// HeadSize is the number of bytes that [Describe] looks at.
const HeadSize = 64

// formats lists formats that users often have in place of data or weights, with their first bytes. The first bytes
// of markup are in lower case.
var formats = []struct{ head, description string }{
	{"version https://git-lfs.github.com/spec/", "a git-lfs pointer in place of the file: run git lfs pull"},
	{"<!doctype html", htmlPage},
	{"<html", htmlPage},
	{"<?xml", "XML, such as a server's error message: download the file again"},
	{"PK\x03\x04", "a zip archive, such as torch.save and numpy.savez write"},
	{"\x1f\x8b\x08", "compressed by gzip: run gunzip"},
	{"\x28\xb5\x2f\xfd", "compressed by zstd: run unzstd"},
	{"\x80\x02", pickle},
	{"\x80\x03", pickle},
	{"\x80\x04", pickle},
	{"\x80\x05", pickle},
	{"GGUF", "of the format GGUF"},
	{"\x89HDF\r\n\x1a\n", "of the format HDF5"},
	{"\x93NUMPY", "an array of NumPy"},
	{"PAR1", "of the format Parquet"},
	{"{", "JSON"},
}

const (
	htmlPage = "an HTML page, such as a login or an error: download the file itself"
	pickle   = "a pickle, such as old versions of torch.save write"
)

// Describe describes the format of a file that begins with head, and says how to get the file that was wanted. It
// returns "" if it does not know the format.
func Describe(head []byte) string {
	markup := bytes.ToLower(bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\ufeff")), " \t\r\n"))
	for _, f := range formats {
		begins := head
		if f.head[0] == '<' {
			begins = markup
		}
		if bytes.HasPrefix(begins, []byte(f.head)) {
			return f.description
		}
	}
	return ""
}
