typedef int sl_placeholder_progress;
