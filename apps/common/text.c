typedef int sl_placeholder_text;
