package jobenv

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Lookup finds a variable, as os.LookupEnv does.
type Lookup = func(name string) (value string, ok bool)

// reader reads variables. It collects an error for each that has a bad value.
type reader struct {
	lookup Lookup
	errs   []error
}

// err returns all errors as one, in one line.
func (r *reader) err() error {
	var texts []string
	for _, err := range r.errs {
		texts = append(texts, err.Error())
	}
	if texts == nil {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}

func (r *reader) addf(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf(format, args...))
}

// bad is the error of a value that the package cannot read.
func bad(name, value, want string) error { return fmt.Errorf("%s=%q: want %s", name, value, want) }

// first returns the first of the variables that is set. An empty one counts as not set.
func (r *reader) first(names ...string) (name, value string) {
	for _, name := range names {
		if value, _ := r.lookup(name); value != "" {
			return name, value
		}
	}
	return "", ""
}

func (r *reader) text(names ...string) string {
	_, value := r.first(names...)
	return value
}

func (r *reader) isOn(fallback bool, names ...string) bool {
	name, value := r.first(names...)
	if name == "" {
		return fallback
	}
	on, err := ParseBool(name, value)
	if err != nil {
		r.errs = append(r.errs, err)
	}
	return on
}

func (r *reader) number(fallback, least, most int, names ...string) int {
	name, value := r.first(names...)
	if name == "" {
		return fallback
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < least || n > most {
		want := fmt.Sprintf("a number from %d to %d", least, most)
		if most == math.MaxInt {
			want = fmt.Sprintf("a number of at least %d", least)
		}
		r.errs = append(r.errs, bad(name, value, want))
	}
	return n
}

// oneOf returns a value that is one of choices, or "". Upper and lower case are the same.
func (r *reader) oneOf(choices []string, want string, names ...string) string {
	name, value := r.first(names...)
	for _, c := range choices {
		if strings.EqualFold(value, c) {
			return c
		}
	}
	if name != "" {
		r.errs = append(r.errs, bad(name, value, want))
	}
	return ""
}

// ParseBool returns the value of a variable that is on or off: 1, true, t, yes and y, or 0, false, f, no and
// n, in upper and lower case.
func ParseBool(name, value string) (bool, error) {
	switch strings.ToLower(value) {
	case "1", "true", "t", "yes", "y":
		return true, nil
	case "0", "false", "f", "no", "n":
		return false, nil
	}
	return false, bad(name, value, "0 or 1")
}
