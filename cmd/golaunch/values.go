package main

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/goddp/goddp/launcher"
)

// value is a pflag.Value that a function parses.
type value[T any] struct {
	target *T
	parse  func(string) (T, error)
	kind   string
	text   string
}

func (v *value[T]) Set(text string) error {
	parsed, err := v.parse(text)
	if err == nil {
		*v.target, v.text = parsed, text
	}
	return err
}

func (v *value[T]) String() string { return v.text }
func (v *value[T]) Type() string   { return v.kind }

func addFlag[T any](fs *pflag.FlagSet, target *T, name, initial, kind string, parse func(string) (T, error), usage string) {
	addFlagP(fs, target, name, "", initial, kind, parse, usage)
}

// addFlagP declares a flag with a one-letter name. initial is the text of its initial
// value; "" means the zero value.
func addFlagP[T any](fs *pflag.FlagSet, target *T, name, short, initial, kind string, parse func(string) (T, error), usage string) {
	v := &value[T]{target: target, parse: parse, kind: kind}
	if initial != "" {
		if err := v.Set(initial); err != nil {
			panic(fmt.Sprintf("golaunch: initial value of --%s: %v", name, err))
		}
	}
	fs.VarP(v, name, short, usage)
}

// refuse declares a torchrun flag that golaunch does not support. If it is used, golaunch exits
// with an error that names an alternative.
func refuse(fs *pflag.FlagSet, name, kind, instead string) {
	addFlag(fs, new(string), name, "", kind, func(string) (string, error) {
		return "", fmt.Errorf("golaunch has no such thing: %s", instead)
	}, "")
}

func parseCount(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return 0, errors.New("want a number, 0 or more")
	}
	return n, nil
}

// parseOnFailure parses the name of a launcher.OnFailure.
func parseOnFailure(text string) (launcher.OnFailure, error) {
	for _, f := range []launcher.OnFailure{launcher.Restart, launcher.Shrink, launcher.Replace} {
		if text == f.String() {
			return f, nil
		}
	}
	return 0, errors.New("want restart, shrink or replace")
}

func parseMinWorkers(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, errors.New("want a number, 1 or more")
	}
	return n, nil
}

// parseStdin parses a local rank, or none, which is -1.
func parseStdin(text string) (int, error) {
	if text == "none" {
		return -1, nil
	}
	n, err := parseCount(text)
	if err != nil {
		return 0, errors.New("want a local rank, or none")
	}
	return n, nil
}

// parseLogFormat reports whether lines are JSON objects.
func parseLogFormat(text string) (isJSON bool, err error) {
	if text != "text" && text != "json" {
		return false, errors.New("want text or json")
	}
	return text == "json", nil
}

func parsePort(text string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return 0, errors.New("want a port, 0 to 65535")
	}
	return int(n), nil
}

// parseSeconds parses a time in torchrun's notation, a number of seconds.
func parseSeconds(text string) (time.Duration, error) {
	s, err := strconv.ParseFloat(text, 64)
	if err != nil || !(s >= 0 && s < math.MaxInt32) {
		return 0, errors.New("want a number of seconds, 0 or more")
	}
	return time.Duration(s * float64(time.Second)), nil
}

func parseInterval(text string) (time.Duration, error) {
	d, err := parseSeconds(text)
	if err != nil || d <= 0 {
		return 0, errors.New("want a number of seconds above 0")
	}
	return d, nil
}

func parseSilence(text string) (time.Duration, error) {
	d, err := parseSeconds(text)
	if err != nil || d < launcher.LeastSilence {
		return 0, fmt.Errorf("want a number of seconds, %g or more", launcher.LeastSilence.Seconds())
	}
	return d, nil
}

func parseRanks(text string) ([]int, error) {
	var ranks []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 0 {
			return nil, errors.New("want local ranks, as in 0,3")
		}
		ranks = append(ranks, n)
	}
	return ranks, nil
}

// parseNproc parses a number of workers. gpu and auto are resolved later: see countWorkers.
func parseNproc(text string) (int, error) {
	switch text {
	case "cpu":
		return runtime.NumCPU(), nil
	case "gpu":
		return gpuWorkers, nil
	case "auto":
		return autoWorkers, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return 0, errors.New("want a number, 1 or more, or auto, cpu or gpu")
	}
	return n, nil
}
