// Package terminal shows foreign text to people.
//
// What agents, titles and servers say is foreign: written to a terminal as it
// is, it could move the cursor, rewrite what was said before, set the title or
// the clipboard, or reorder a line. So every rune that is an instruction rather
// than a character is shown by its name. Nothing is dropped in silence.
package terminal
