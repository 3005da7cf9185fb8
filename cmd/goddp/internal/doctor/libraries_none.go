//go:build !(cgo && linux)

package doctor

// readLibraries does nothing: this program was built without cgo or not for Linux, and opens no library.
func (f *Facts) readLibraries(int) {}
