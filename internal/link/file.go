package link

import (
	"context"
	"fmt"
	"path"
)

// MaxFileBytes bounds a file that is read or written in one call.
const MaxFileBytes = 16 << 20

// maxWalkEntries bounds a Walk.
const maxWalkEntries = 100_000

// WalkEntry is one name found by Walk.
type WalkEntry struct {
	Path        string // absolute
	IsDirectory bool
	IsFile      bool
}

// ReadFile returns the whole of a regular file of at most MaxFileBytes.
// fs.ErrNotExist, fs.ErrPermission, ErrLimit.
func (c *Client) ReadFile(ctx context.Context, name string) ([]byte, error) {
	var r ReadFileResult
	err := c.call(ctx, MethodReadFile, PathParams{Path: PathURI(name)}, &r)
	return r.Data, err
}

// WriteFile replaces the content of a regular file, creating it if it is
// missing, or writes through the link at name.
func (c *Client) WriteFile(ctx context.Context, name string, data []byte) error {
	if len(data) > MaxFileBytes {
		return fmt.Errorf("%s: %d bytes: %w", MethodWriteFile, len(data), ErrLimit)
	}
	p := WriteFileParams{Path: PathURI(name), Data: []byte{}}
	_, err := c.exchange(ctx, MethodWriteFile, &p, c.ship(&p.Data, data), nil)
	return err
}

// CreateDirectory makes a directory; recursive makes its parents too and is
// content when it exists.
func (c *Client) CreateDirectory(ctx context.Context, name string, recursive bool) error {
	return c.call(ctx, MethodCreateDirectory, CreateDirectoryParams{Path: PathURI(name), Recursive: &recursive}, nil)
}

// GetMetadata describes what is at name.
func (c *Client) GetMetadata(ctx context.Context, name string) (Metadata, error) {
	var r Metadata
	err := c.call(ctx, MethodGetMetadata, PathParams{Path: PathURI(name)}, &r)
	return r, err
}

// ReadDirectory lists a directory, sorted by name.
func (c *Client) ReadDirectory(ctx context.Context, name string) ([]DirEntry, error) {
	var r ReadDirectoryResult
	if err := c.call(ctx, MethodReadDirectory, PathParams{Path: PathURI(name)}, &r); err != nil {
		return nil, err
	}
	for i := range r.Entries {
		if e := &r.Entries[i]; e.NameBytes != nil {
			e.Name, e.NameBytes = string(e.NameBytes), nil
		}
	}
	return r.Entries, nil
}

// RemovePath removes a file or an empty directory; recursive removes a tree,
// force is content when nothing is there.
func (c *Client) RemovePath(ctx context.Context, name string, recursive, force bool) error {
	return c.call(ctx, MethodRemove, RemoveParams{Path: PathURI(name), Recursive: &recursive, Force: &force}, nil)
}

// CopyPath copies a file, or a tree when recursive.
func (c *Client) CopyPath(ctx context.Context, from, to string, recursive bool) error {
	p := CopyParams{SourcePath: PathURI(from), DestinationPath: PathURI(to), Recursive: recursive}
	return c.call(ctx, MethodCopy, p, nil)
}

// Canonicalize resolves every link in name.
func (c *Client) Canonicalize(ctx context.Context, name string) (string, error) {
	var r CanonicalizeResult
	if err := c.call(ctx, MethodCanonicalize, PathParams{Path: PathURI(name)}, &r); err != nil {
		return "", err
	}
	p, err := ParsePath(r.Path)
	if err != nil {
		return "", fmt.Errorf("%s: %w: %w", MethodCanonicalize, ErrMalformed, err)
	}
	return p, nil
}

// Walk lists the tree under name, each directory before what is in it, names
// sorted, links not followed. ErrLimit past 100,000 entries.
func (c *Client) Walk(ctx context.Context, name string) ([]WalkEntry, error) {
	var out []WalkEntry
	todo := []string{path.Clean(name)}
	for len(todo) > 0 {
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		entries, err := c.ReadDirectory(ctx, dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if !validName(e.Name) {
				return nil, fmt.Errorf("walk %q: entry %q: %w", dir, e.Name, ErrMalformed)
			}
			out = append(out, WalkEntry{Path: path.Join(dir, e.Name), IsDirectory: e.IsDirectory, IsFile: e.IsFile})
		}
		if len(out) > maxWalkEntries {
			return nil, fmt.Errorf("walk %q: over %d entries: %w", name, maxWalkEntries, ErrLimit)
		}
		for _, e := range entries {
			if e.IsDirectory {
				todo = append(todo, path.Join(dir, e.Name))
			}
		}
	}
	return out, nil
}

// validName refuses names that would lead a walk elsewhere.
func validName(name string) bool {
	return name != "" && name != "." && name != ".." && path.Base(name) == name
}
