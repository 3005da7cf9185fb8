package cupti

import (
	"strconv"
	"strings"
)

// shortName returns the qualified name of a kernel, without the template arguments and the parameters,
// from its mangled name (the Itanium C++ ABI, 5.1). Other names are returned unchanged.
func shortName(mangled string) string {
	rest := mangled
	if strings.HasPrefix(rest, "__nv_static_") { // the compiler's prefix of names with internal linkage
		rest = rest[max(0, strings.Index(rest, "_Z")):]
	}
	rest, ok := strings.CutPrefix(rest, "_Z")
	if !ok {
		return mangled
	}
	rest, isNested := strings.CutPrefix(rest, "N")
	var parts []string
	for rest != "" {
		if after, ok := strings.CutPrefix(rest, "St"); ok {
			parts, rest = append(parts, "std"), after
			continue
		}
		rest = strings.TrimLeft(rest, "KL") // const members, and names with internal linkage
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789"))
		n, err := strconv.Atoi(rest[:digits])
		if err != nil || digits+n > len(rest) {
			break
		}
		name := rest[digits : digits+n]
		rest = rest[digits+n:]
		if !strings.HasPrefix(name, "_GLOBAL__N_") { // a namespace without a name
			parts = append(parts, name)
		}
		if !isNested {
			break
		}
	}
	if len(parts) == 0 {
		return mangled
	}
	return strings.Join(parts, "::")
}
