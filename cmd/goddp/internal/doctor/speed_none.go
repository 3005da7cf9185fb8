//go:build !linux

package doctor

// interfaceSpeed returns 0: the speed is unknown.
func interfaceSpeed(string) float64 { return 0 }
