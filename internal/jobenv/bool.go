package jobenv

import (
	"fmt"
	"strings"
)

// Bool returns the value of the first of the named variables that is set, or fallback if
// none is. A variable that is empty counts as not set. getenv is a function such as
// [os.Getenv].
func Bool(getenv func(string) string, fallback bool, names ...string) (bool, error) {
	for _, name := range names {
		if value := getenv(name); value != "" {
			return ParseBool(name, value)
		}
	}
	return fallback, nil
}

// ParseBool returns the value of one variable. It accepts 1, true, t, yes and y, and 0, false,
// f, no and n, in upper and lower case.
func ParseBool(name, value string) (bool, error) {
	switch strings.ToLower(value) {
	case "1", "true", "t", "yes", "y":
		return true, nil
	case "0", "false", "f", "no", "n":
		return false, nil
	}
	return false, fmt.Errorf("%s=%q: want 0 or 1", name, value)
}
