//go:build !(cgo && linux)

package doctor

// libraries returns nothing: this program was built without cgo or not for Linux, and opens no library.
func libraries(int) (visible []string, gpu string, found []Library) { return nil, "", nil }
