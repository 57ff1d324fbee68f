-- What a run remembers of its last call of a model, when that failed.

-- +goose Up
ALTER TABLE runs ADD COLUMN model_error TEXT NOT NULL DEFAULT '';
