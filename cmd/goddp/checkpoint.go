package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/goddp/goddp/checkpoint"
)

// checkpointHelp is the text of "goddp checkpoint --help".
const checkpointHelp = `Look into checkpoints.

Usage:
  goddp checkpoint ls [--verify] FOLDER
  goddp checkpoint verify PATH
  goddp checkpoint diff A B
  goddp checkpoint convert [--all] FROM TO

ls       lists the checkpoints in a folder, the latest first
verify   reads a checkpoint, or all in a folder, and compares all checksums
diff     says which tensors and values of two checkpoints differ, and by how much
convert  makes one safetensors file of the weights of a checkpoint, which PyTorch and
         Hugging Face read, or a checkpoint of such a file, or of the files of an
         index, model.safetensors.index.json

A PATH is a checkpoint, such as run1/step-00001200. A, B and FROM may be a folder of
checkpoints as well: the latest one in it counts.

Flags:
%s
Exit codes: 0 all is well; 1 a checkpoint is corrupt or cannot be read, or two differ;
2 usage.
`

// checkpoints implements "goddp checkpoint".
func checkpoints(args []string) error {
	var all, verify bool
	fs := newFlags("checkpoint")
	fs.BoolVar(&all, "all", false, "the file of convert has the optimizers' state too, and makes an equal checkpoint again")
	fs.BoolVar(&verify, "verify", false, "ls reads the checkpoints, and compares all checksums")
	if err := parse(fs, args, checkpointHelp); err != nil {
		return err
	}
	if fs.NArg() == 0 {
		return usagef("want ls, verify, diff or convert")
	}
	name, paths := fs.Arg(0), fs.Args()[1:]
	want, known := map[string]int{"ls": 1, "verify": 1, "diff": 2, "convert": 2}[name]
	switch {
	case !known:
		return usagef("there is no %q, want ls, verify, diff or convert", name)
	case len(paths) != want:
		return usagef("%s takes %d paths, got %d", name, want, len(paths))
	case all && name != "convert", verify && name != "ls":
		return usagef("--all is only for convert, and --verify only for ls")
	}
	switch name {
	case "ls":
		return listCheckpoints(paths[0], verify)
	case "verify":
		return verifyCheckpoints(paths[0])
	case "diff":
		return diffCheckpoints(paths[0], paths[1])
	default:
		return convertCheckpoint(paths[0], paths[1], all)
	}
}

// errCorrupt makes goddp exit with code 1. The output has already named the reason.
var errCorrupt = errors.New("some checkpoints are corrupt")

func listCheckpoints(dir string, verify bool) error {
	infos, err := checkpoint.List(dir)
	if err != nil {
		return err
	}
	if len(infos) == 0 {
		fmt.Fprintf(stdout, "no checkpoints in %s\n", dir)
		return nil
	}
	out := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "NAME\tSTEP\tSIZE\tAGE\tRANKS\tINTEGRITY")
	bad := false
	for _, info := range infos {
		name := info.Path[strings.LastIndexByte(info.Path, os.PathSeparator)+1:]
		if info.Latest {
			name += " (latest)"
		}
		if info.Best {
			name += " (best)"
		}
		err := info.Err
		integrity := "manifest intact"
		if verify && err == nil {
			err, integrity = checkpoint.Verify(info.Path), "verified"
		}
		if m := info.Manifest; m != nil && m.NonFinite != "" {
			integrity += ", NaN or Inf in " + m.NonFinite
		}
		if err != nil {
			bad = true
			integrity = problems(err)
		}
		if m := info.Manifest; m != nil {
			fmt.Fprintf(out, "%s\t%d\t%s\t%s\t%d\t%s\n", name, m.Step, size(m.Bytes()), age(time.Since(m.Time)), m.WorldSize, integrity)
		} else {
			fmt.Fprintf(out, "%s\t%d\t\t\t\t%s\n", name, info.Step, integrity)
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if bad {
		return errCorrupt
	}
	return nil
}

func verifyCheckpoints(path string) error {
	infos, err := checkpoint.List(path)
	if err != nil {
		return err
	}
	var paths []string
	for _, info := range infos {
		paths = append(paths, info.Path)
	}
	if paths == nil { // path is itself a checkpoint
		one, err := checkpoint.Latest(path)
		if err != nil {
			return err
		}
		paths = []string{one}
	}
	bad := false
	for _, p := range paths {
		if err := checkpoint.Verify(p); err != nil {
			bad = true
			fmt.Fprintf(stdout, "%s: %s\n", p, problems(err))
			continue
		}
		fmt.Fprintf(stdout, "%s: verified\n", p)
	}
	if bad {
		return errCorrupt
	}
	return nil
}

// problems returns the text of err, the errors of a checkpoint, without its path.
func problems(err error) string {
	var c *checkpoint.CorruptError
	if errors.As(err, &c) {
		return "corrupt: " + strings.Join(c.Problems, "; ")
	}
	return err.Error()
}

func diffCheckpoints(a, b string) error {
	all, err := checkpoint.Diff(a, b)
	if err != nil {
		return err
	}
	for _, d := range all {
		fmt.Fprintf(stdout, "%s: %s\n", d.Name, d.Text)
	}
	if len(all) > 0 {
		return fmt.Errorf("%s and %s differ in %d places", a, b, len(all))
	}
	return nil
}

func convertCheckpoint(from, to string, all bool) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	made := to
	if info.IsDir() {
		err = checkpoint.Export(from, to, all)
	} else {
		made, err = checkpoint.Import(from, to)
	}
	if err != nil {
		return err
	}
	if info, err := os.Stat(made); err == nil && (info.IsDir() || info.Mode().IsRegular()) { // another kind of file may be standard output
		fmt.Fprintln(stdout, made)
	}
	return nil
}

// size formats a number of bytes.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	x, i := float64(n), 0
	for x >= 1024 && i < len(units)-1 {
		x, i = x/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", x, units[i])
}

// age formats a time in its two largest units.
func age(d time.Duration) string {
	s, m, h := int(d.Seconds()), int(d.Minutes()), int(d.Hours())
	switch {
	case m == 0:
		return fmt.Sprintf("%ds", s)
	case h == 0:
		return fmt.Sprintf("%dm%ds", m, s%60)
	case h < 24:
		return fmt.Sprintf("%dh%dm", h, m%60)
	}
	return fmt.Sprintf("%dd%dh", h/24, h%24)
}
